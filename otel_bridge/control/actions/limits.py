"""What users write under every action: whom it acts for, how often, and whether in earnest."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from otel_bridge.units import Duration


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RateLimitConfig(_Model):
    """How often an action may make things stricter; what makes them looser always goes."""

    changes: Annotated[int, Field(ge=1)] = Field(
        60, description="So many at once, and so many in each interval."
    )
    interval: Annotated[Duration, Field(gt=0)] = 60.0


class ActionConfig(_Model):
    """What all actions have."""

    targets: tuple[str, ...] = Field(
        min_length=1,
        description='Patterns of the targets it acts on; "*" is all. Required: nothing acts unasked.',
    )
    dry_run: bool = Field(False, description="Only write into the audit log what would be done.")
    rate_limit: RateLimitConfig = RateLimitConfig()

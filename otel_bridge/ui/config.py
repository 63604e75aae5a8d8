"""What users write about the bridge's own pages."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from otel_bridge.units import ByteSize

_KIB = 1 << 10


class UiConfig(BaseModel):
    """Pages at `/ui`, beside /metrics: recent traces with their kernel events, breakers, rules, health."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(True, description="false keeps no traces and serves no pages.")
    max_bytes: Annotated[ByteSize, Field(ge=64 * _KIB)] = Field(
        8192 * _KIB, description="The most bytes of recent traces that are kept in memory to be looked at."
    )
    traces_per_second: Annotated[float, Field(gt=0, le=1000)] = Field(
        5.0,
        description="How many new traces a second are kept at most; as many more that failed, or that have "
        "kernel events.",
    )

"""How long to wait before something is tried again: exponential back-off with full jitter."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from otel_bridge.units import Duration

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_ASKED = 3600.0
"""A destination cannot shut itself off for longer than this by one answer, seconds."""

PositiveDuration = Annotated[Duration, Field(gt=0)]


class RetryConfig(BaseModel):
    """How often a request is tried again; there is no age at which it is given up."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    initial_interval: PositiveDuration = Field(
        default=5.0,
        description="Upper end of the wait before the second try; the wait is drawn evenly from 0 to it.",
    )
    max_interval: PositiveDuration = Field(
        default=30.0,
        description="The upper end never grows beyond this. A longer wait that the destination asks for is "
        "kept.",
    )
    multiplier: Annotated[float, Field(ge=1)] = Field(
        default=1.5, description="How much the upper end grows with each failure."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_interval < self.initial_interval:
            raise ValueError("max_interval must not be shorter than initial_interval")
        return self


class RetryPolicy:
    """Exponential back-off with full jitter: a wait is drawn evenly from 0 to a growing upper end."""

    def __init__(self, config: RetryConfig, draw: Callable[[], float] = random.random) -> None:
        """`draw` gives numbers in [0, 1)."""
        self._config = config
        self._draw = draw

    def delay(self, failures: int, floor: float = 0.0) -> float:
        """Seconds to wait after so many failures in a row (at least 1).

        `floor` is what the destination asked for (RetryInfo, Retry-After): the wait is that long and a
        drawn part more, so that those who were told the same do not all come back at once.
        """
        config = self._config
        exponent = min(failures - 1, 1000)
        try:
            upper = min(config.initial_interval * config.multiplier**exponent, config.max_interval)
        except OverflowError:
            upper = config.max_interval
        return min(floor, LONGEST_ASKED) + self._draw() * upper

"""What a user can say about joining kernel events with spans."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from otel_bridge.units import ByteSize, Duration


class JoinConfig(BaseModel):
    """How long kernel events wait for their span, and what a span says of them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(
        True, description="Costs nothing while no probe runs and no other bridge sends events."
    )
    max_age: Duration = Field(
        60.0,
        description="How long an event waits for its span: longer than the longest request plus the delay of "
        "its exporter (5 s in the SDKs).",
    )
    max_bytes: ByteSize = Field(
        64 << 20, description="The most bytes of waiting events; beyond it the oldest leave unjoined."
    )
    wait: Duration = Field(
        2.0,
        description="The longest that a request waits for the kernel's events of its spans, which are read "
        "in rounds (kernel.sum_interval). Its sender is answered so much later.",
    )
    foreign_wait: Duration = Field(
        0.0,
        description="At a gateway: a request waits until its youngest span ended so long ago, for the events "
        "that nodes' bridges send on when they have waited join.max_age for the span themselves. Keep it "
        "below the sender's timeout, 5 s in the Collector's exporters.",
    )
    slack: Duration = Field(
        0.001, description="How far outside its span an event may lie: the clocks' alignment error."
    )
    max_events: int = Field(
        32, ge=0, description="Single occurrences written on one span; those beyond are counted only."
    )
    unmatched: bool = Field(
        True, description="Send events that found no span on as log records, for a bridge that has the span."
    )

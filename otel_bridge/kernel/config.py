"""What a user can set about kernel events."""

from __future__ import annotations

import mmap
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from otel_bridge.units import ByteSize, Duration


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _ring_size(size: int) -> int:
    if size < mmap.PAGESIZE or size & (size - 1):
        raise ValueError(f"a ring buffer is a power of two of bytes, at least a page ({mmap.PAGESIZE})")
    return size


RingSize = Annotated[ByteSize, AfterValidator(_ring_size)]


class ProbeConfig(_Model):
    """What every probe has."""

    enabled: bool = True
    ring_size: RingSize = Field(
        256 * 1024, description="Room for events that were not read yet; a power of two."
    )
    events_per_second: int = Field(
        0, ge=0, description="At most so many events a second on each CPU, the rest is counted; 0: no limit."
    )


class TcpConfig(ProbeConfig):
    """Retransmits, resets, connection attempts."""

    connect_threshold: Duration = Field(
        0.0, description="Connections that are made faster are no events; failed ones always are."
    )


class SchedConfig(ProbeConfig):
    """Waiting for a CPU, and for anything else."""

    run_queue_threshold: Duration = Field(
        0.01, description="A single wait for a CPU this long is an event; shorter ones are summed per span."
    )
    off_cpu_threshold: Duration = Field(
        0.05, description="A single wait for anything else this long is an event."
    )
    stacks: bool = Field(True, description="Keep the user stack where a long wait began.")


class BlockConfig(ProbeConfig):
    """Block I/O."""

    latency_threshold: Duration = Field(
        0.01,
        description="A single request this slow is an event; faster ones are summed per span and device.",
    )


class MemoryConfig(ProbeConfig):
    """OOM kills and reclaim."""

    reclaim_threshold: Duration = Field(
        0.001, description="A single reclaim this long is an event; shorter ones are summed per span."
    )


class ProbesConfig(_Model):
    """The probes, each optional on its own."""

    tcp: TcpConfig = TcpConfig()
    sched: SchedConfig = SchedConfig()
    block: BlockConfig = BlockConfig()
    memory: MemoryConfig = MemoryConfig()
    tls: ProbeConfig = ProbeConfig()


class KernelConfig(_Model):
    """Kernel events."""

    mode: Literal["auto", "required", "off"] = Field(
        "auto",
        description="auto: load what this machine lets load, and say what not. required: or do not start.",
    )
    probes: ProbesConfig = ProbesConfig()
    max_processes: int = Field(
        16384, ge=1, description="Processes whose threads' spans are followed at once."
    )
    max_spans: int = Field(
        16384, ge=1, description="Spans that are summed up in the kernel between two `sum_interval`s."
    )
    read_interval: Duration = Field(
        0.005, description="Least time between two reads of the ring buffers; a first event is read at once."
    )
    sum_interval: Duration = Field(0.25, description="How often sums per span are taken from the kernel.")
    scan_interval: Duration = Field(
        2.0, description="How often running processes are looked through for what is new in them."
    )
    drop_privileges: bool = Field(
        True, description="After loading, give up every capability that is not needed any more."
    )
    run_statistics: bool = Field(
        False, description="Have the kernel time the programs themselves: about 20 ns a run more."
    )

"""What spans may be told of the GPUs that their process used: columns for whole resources, never by span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SpanUsage:
    """The GPUs of one process during some spans; a value that was not read is NaN.

    Attributes:
        match: how they were found: "process", "child", "container".
        uuids: of the GPUs.
        worst: for each span the index in `uuids` of the GPU whose memory was fullest in its time.
        memory_at_start: used share of that GPU's memory when the span began.
        memory_max: the largest in its time.
        utilization_at_start: of that GPU, when the span began.
        utilization_max: the highest in its time.
    """

    match: str
    uuids: tuple[str, ...]
    worst: NDArray[np.intp]
    memory_at_start: NDArray[np.float64]
    memory_max: NDArray[np.float64]
    utilization_at_start: NDArray[np.float64]
    utilization_max: NDArray[np.float64]


class GpuUsage(Protocol):
    """Knows which process used which GPU; asked from the data path's thread."""

    @property
    def is_used(self) -> bool:
        """Whether any process uses a GPU; while none does, nothing else need be asked."""

    def learn(self, container: str, own_pid: int, service: str) -> None:
        """A resource says which service a process is.

        Args:
            container: its `container.id`; empty: it says none.
            own_pid: its `process.pid`; 0: it says none.
            service: its `service.name`.
        """

    def of(
        self, container: str, own_pid: int, starts: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> SpanUsage | None:
        """The GPUs of a process during spans; None when it uses none.

        Args:
            container: see `learn`.
            own_pid: see `learn`.
            starts: of the spans, unix nanoseconds.
            ends: of the spans.
        """

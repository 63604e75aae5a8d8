"""Kernel events as columns: what `kernel` hands over and the `join` processor, rules and metrics take in.

Like spans (batch.py), events never become objects one by one: the reader of a ring buffer hands over what it
found as one structured array.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

COMMON = np.dtype(
    [
        ("kind", "<u2"),  # model.KernelEventKind
        ("match", "u1"),  # model.Match
        ("trace_flags", "u1"),  # W3C
        ("error", "<i4"),  # negative errno, or the subject's own code; 0: none
        ("time", "<u8"),  # when it ended, unix nanoseconds
        ("duration", "<u8"),  # nanoseconds; 0: it has none
        ("tgid", "<u4"),  # process id in the initial pid namespace; 0: unknown
        ("tid", "<u4"),
        ("trace_id", "V16"),  # all zero: no span was found
        ("span_id", "V8"),
    ]
)
"""What every event has; the first 56 bytes of its record (bpf/common/event.h)."""

PROCESS = np.dtype([*COMMON.descr, ("namespace_pid", "<u4"), ("pid_namespace", "<u4"), ("container", "S64")])
"""A process that began or ended, from the probe "process": how it is called where it calls itself something.

`tgid` is its number in the initial pid namespace, `namespace_pid` that in its own (`process.pid` of its
spans), `pid_namespace` the inode number of that namespace, `container` its container's id in hexadecimal
digits, empty where none is known. At its end only `tgid` is told.
"""

PROBE_OF_PROCESSES = "process"
"""The probe whose events are of dtype PROCESS and concern no span."""


@dataclass(frozen=True, slots=True)
class KernelEvents:
    """Events of one probe, in the order of the ring buffer they came through.

    Attributes:
        probe: which probe they came from ("tcp", "sched", …).
        records: shape (n,); begins with the fields of COMMON, the probe's own fields follow. Several kinds
            of one probe share the record and are told apart by `kind`. Writable, and the receiver's own.
    """

    probe: str
    records: NDArray[np.void]

    def __len__(self) -> int:
        """How many events there are."""
        return len(self.records)


class KernelEventSink(Protocol):
    """Where kernel events are handed over."""

    def take(self, events: KernelEvents) -> None:
        """Take some events; called in threads of the reader, one at a time; must neither block nor raise."""

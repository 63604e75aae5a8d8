"""What the programs know of each process: where its threads keep the span that they are at.

A byte for each process that there can be, in memory that is the kernel's and ours: 0, or the number of a
layout, or what the programs have seen the process do (`enum known` in bpf/common/context.h). Layouts are few:
processes that run the same program mostly have the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.records import Known

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from otel_bridge.kernel.thread_context import ThreadContextLayout

Layout = tuple[int, int, int, int, bool]


class ProcessTable:
    """Says of processes where their threads keep their span.

    One thread at a time; the programs read, and write bytes of their own, meanwhile.

    Args:
        known: by process, shape (PROCESSES,).
        write: puts a THREAD_LAYOUT where a number stands for it.
    """

    def __init__(self, known: NDArray[np.uint8], write: Callable[[int, Layout], None]) -> None:
        self._known = known
        self._write = write
        self._numbers: dict[Layout, int] = {}

    def follow(self, pid: int, layout: ThreadContextLayout) -> None:
        """Have a process's threads asked; pid as the bridge's own namespace numbers it.

        Raises:
            BridgeError: too many layouts, or the kernel refused.
        """
        way = (layout.offset, layout.module, layout.dtv_pointer, layout.dtv_stride, layout.counts_changes)
        number = self._numbers.get(way)
        if number is None:
            number = self._free_number()
            self._write(number, way)
            self._numbers[way] = number
        self._known[pid] = number

    def discard(self, pid: int) -> None:
        """Ask a process's threads no more."""
        self._known[pid] = 0

    def known(self) -> list[int]:
        """All processes of which something is known, also those that the programs entered by themselves."""
        pids: list[int] = np.flatnonzero(self._known).tolist()
        return pids

    def _free_number(self) -> int:
        numbers = range(Known.FIRST_LAYOUT, Known.LAYOUTS)
        if len(self._numbers) == len(numbers):
            # Children that the kernel has entered by itself are among these.
            used = set(np.unique(self._known).tolist())
            self._numbers = {way: number for way, number in self._numbers.items() if number in used}
        taken = set(self._numbers.values())
        for number in numbers:
            if number not in taken:
                return number
        raise BridgeError(
            f"its threads keep their span at a place of its own, and {len(numbers)} such places are in use"
        )

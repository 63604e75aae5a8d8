"""Names the kernel's own functions, by /proc/kallsyms: read once, when the first stack needs it.

Addresses of the kernel never leave the bridge: what has no name is left out.
"""

from __future__ import annotations

import os
import re
import threading
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import structlog

from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

log = structlog.get_logger(__name__)

KALLSYMS = PROC / "kallsyms"
MAX_BYTES = 64 << 20
"""Of the table; what lies behind is not read. A kernel with all its modules has some 10 MB."""

MAX_FRAMES = 8
"""Of a stack; the innermost ones say what was waited for."""

MENDS = "their addresses are hidden: sysctl kernel.kptr_restrict=1, and CAP_SYSLOG where the bridge starts"

_SWITCHING = ("schedule", "preempt_schedule", "__schedule", "__cond_resched")
"""How each wait's stack begins: functions that give the CPU away, which say nothing about why."""

_LARGEST = 1 << 16
"""Bytes of a function; what lies farther behind one's beginning is in none that is told."""

# A line: sixteen digits, a blank, the kind of symbol, a blank, the name; of a module, a tab and [its name].
_DIGITS, _KIND, _NAME = 16, 17, 19
_CODE = np.frombuffer(b"tTwW", "u1")
_DIGIT = np.zeros(256, np.uint64)
_DIGIT[np.frombuffer(b"0123456789abcdef", "u1")] = np.arange(16)
_PLACE = np.uint64(4) * np.arange(_DIGITS - 1, -1, -1, dtype=np.uint64)
_PIECE = 1 << 20
_NEWLINE = 10


def traced(names: Sequence[str], kallsyms: Path = KALLSYMS) -> dict[str, bool]:
    """Which tracepoints the running kernel and its modules have, told from their symbols."""
    found = set(re.findall(r" __traceiter_(\w+)", kallsyms.read_text()))
    return {name: name in found for name in names}


class KernelSymbols:
    """The kernel's functions by address.

    The file is opened now, since whoever opens it must have the privilege to see addresses, and read later.

    Args:
        path: of the table.
    """

    def __init__(self, path: Path = KALLSYMS) -> None:
        self._lock = threading.Lock()
        self._problem = MENDS
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._problem = str(error)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def frames(self, addresses: Sequence[int]) -> list[str]:
        """The functions of a stack for people, innermost first: `do_epoll_wait+0x1f (kernel)`.

        Args:
            addresses: innermost first.
        """
        named = [frame for frame in map(self._frame, addresses) if frame]
        first = next((n for n, frame in enumerate(named) if not frame.startswith(_SWITCHING)), len(named))
        return named[first : first + MAX_FRAMES]

    def _frame(self, address: int) -> str:
        starts, names, data = self._table
        index = int(np.searchsorted(starts, np.uint64(address), "right")) - 1
        if index < 0 or address - int(starts[index]) >= _LARGEST:
            return ""
        begin = int(names[index])
        name, _, module = data[begin : data.index(b"\n", begin)].decode(errors="replace").partition("\t")
        return f"{name}+{address - int(starts[index]):#x} ({module.strip('[]') or 'kernel'})"

    @cached_property
    def _table(self) -> tuple[NDArray[np.uint64], NDArray[np.intp], bytes]:
        """Where functions begin, ascending; where in the text their names do; the text."""
        data = self._read()
        text = np.frombuffer(data, "u1")
        ends = np.flatnonzero(text == _NEWLINE)
        lines = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
        lines = lines[ends - lines > _NAME]
        lines = lines[np.isin(text[lines + _KIND], _CODE)]
        digits = _DIGIT[text[lines[:, None] + np.arange(_DIGITS)]]
        starts = np.bitwise_or.reduce(digits << _PLACE, axis=1)
        lines, starts = lines[starts > 0], starts[starts > 0]
        if not len(starts):
            log.info("the kernel's functions have no names", reason=self._problem)
        order = np.argsort(starts, kind="stable")
        return starts[order], lines[order] + _NAME, data

    def _read(self) -> bytes:
        with self._lock:
            if self._fd < 0:
                return b""
            pieces, room = [], MAX_BYTES
            while room > 0 and (piece := os.read(self._fd, min(room, _PIECE))):
                pieces.append(piece)
                room -= len(piece)
        return b"".join(pieces)

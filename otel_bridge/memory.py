"""Memory of a process that serves: what is freed is kept, and cycles are looked for seldom.

The C library's allocator is told to keep what is freed instead of returning it to the system at once. A
request of 500 KB is copied some times on its way and freed again. glibc gives such pieces back to the kernel
and asks for them anew with the next request, and the kernel clears each page anew: measured with
`tests/bench/micro_receiver.py`, a third of the CPU of an HTTP request and a seventh of a gRPC one.
"""

from __future__ import annotations

import ctypes
import gc

FAST_COLLECTIONS = (50_000, 20, 20)
"""Collector thresholds: a request makes few cycles, and the default walks the heap 70 times as often."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_LARGEST_MMAP_THRESHOLD = 32 << 20
"""glibc takes no larger one."""

KEPT = 64 << 20
"""Bytes kept at most at the top of the heap."""


def prepare_to_serve() -> None:
    """Set this process up; call it once, early."""
    gc.set_threshold(*FAST_COLLECTIONS)
    keep_freed_memory()


def keep_freed_memory(kept: int = KEPT) -> bool:
    """Keep up to `kept` freed bytes for the next request; call it once, early in the process.

    Returns:
        Whether the C library took it: only glibc does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    taken: int = mallopt(_M_MMAP_THRESHOLD, min(kept, _LARGEST_MMAP_THRESHOLD))
    return bool(taken and mallopt(_M_TRIM_THRESHOLD, kept))

"""The C library's allocator, told to keep what is freed instead of returning it to the system at once.

A request of 500 KB is copied some times on its way and freed again. glibc gives such pieces back to the
kernel and asks for them anew with the next request, and the kernel clears each page anew: measured with
`tests/bench/micro_receiver.py`, a third of the CPU of an HTTP request and a seventh of a gRPC one.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_LARGEST_MMAP_THRESHOLD = 32 << 20
"""glibc takes no larger one."""

KEPT = 64 << 20
"""Bytes kept at most at the top of the heap."""


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

"""Memory of a process that serves: what is freed is kept, in huge pages; cycles are looked for seldom.

The C library's allocator is told to keep what is freed instead of returning it to the system at once. A
request of 500 KB is copied some times on its way and freed again. glibc gives such pieces back to the kernel
and asks for them anew with the next request, and the kernel clears each page anew: measured with
`tests/bench/micro_receiver.py`, a third of the CPU of an HTTP request and a seventh of a gRPC one.

What is kept lies in huge pages where the kernel gives them to who asks: each copy of a megabyte otherwise
looks up 256 pages, twice over in a virtual machine.
"""

from __future__ import annotations

import ctypes
import gc
import mmap

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
        libc = ctypes.CDLL(None)
        mallopt = libc.mallopt
    except (AttributeError, OSError):
        return False
    mapped = min(kept, _LARGEST_MMAP_THRESHOLD)
    if not (mallopt(_M_MMAP_THRESHOLD, mapped) and mallopt(_M_TRIM_THRESHOLD, kept)):
        return False
    _grow_in_huge_pages(libc, mapped - mmap.PAGESIZE)
    return True


def _grow_in_huge_pages(libc: ctypes.CDLL, size: int) -> None:
    """Make the heap grow by `size`, which touches no page, and ask for huge ones there.

    A kernel without them says no, and the pages are small.
    """
    malloc, madvise, free = libc.malloc, libc.madvise, libc.free
    malloc.restype = ctypes.c_void_p
    malloc.argtypes = (ctypes.c_size_t,)
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    free.argtypes = (ctypes.c_void_p,)
    piece = malloc(size)
    if piece is not None:
        start = -(-piece // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (piece + size) // mmap.PAGESIZE * mmap.PAGESIZE
        madvise(start, end - start, mmap.MADV_HUGEPAGE)
        free(piece)

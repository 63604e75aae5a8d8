"""The kernel's ring buffer, read in whole spans.

libbpf's own reader calls back once a record, which in Python costs a microsecond each. All records of one of
our rings have the same size, so what lies between the consumer's and the producer's position is an array: it
is copied out in one piece and its headers are checked all at once.

The layout is the kernel's interface (kernel/bpf/ringbuf.c): one page with the consumer's position, which
we write; one page with the producer's position, then the data, mapped twice in a row so that no record is
ever split. A record is preceded by eight bytes of which the first four hold its length and two flags.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER_SIZE = 8
BUSY = 1 << 31
DISCARD = 1 << 30
LENGTH = DISCARD - 1


@dataclass(frozen=True, slots=True)
class RingMemory:
    """Where a ring lies in memory.

    Attributes:
        consumer: the consumer's position, shape (1,), u8; written by the reader.
        producer: the producer's position, shape (1,), u8.
        data: the data twice in a row, shape (2 * size,), bytes.
    """

    consumer: NDArray[np.uint64]
    producer: NDArray[np.uint64]
    data: NDArray[np.uint8]

    @classmethod
    def of_map(cls, fd: int, size: int) -> RingMemory:
        """Map a BPF ring buffer of `size` bytes; the mappings live as long as the arrays.

        Raises:
            OSError: refused.
        """
        page = mmap.PAGESIZE
        consumer = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=0)
        rest = mmap.mmap(fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        return cls(
            np.frombuffer(consumer, "<u8", 1),
            np.frombuffer(rest, "<u8", 1),
            np.frombuffer(rest, "u1", 2 * size, offset=page),
        )


class Ring:
    """Takes records of one dtype out of a ring.

    Attributes:
        malformed: records thrown away because their length was not the dtype's.
    """

    def __init__(self, memory: RingMemory, dtype: np.dtype[Any]) -> None:
        self._memory = memory
        self._dtype = dtype
        self._size = len(memory.data) // 2
        self._stride = HEADER_SIZE + -(-dtype.itemsize // 8) * 8
        self.malformed = 0

    def take(self) -> NDArray[np.void]:
        """All records that are complete, copied out, oldest first; makes room for new ones."""
        consumer = int(self._memory.consumer[0])
        # The producer publishes its position and each header with release semantics; taking and releasing the
        # interpreter's locks between these reads orders them on weakly ordered machines.
        waiting = int(self._memory.producer[0]) - consumer
        count = waiting // self._stride
        if count == 0:
            return np.empty(0, self._dtype)
        start = consumer % self._size
        window = self._memory.data[start : start + count * self._stride].reshape(count, self._stride)
        headers = window[:, :4].copy().view("<u4").reshape(count)
        busy = np.flatnonzero(headers & BUSY)
        if len(busy):
            count = int(busy[0])
            headers, window = headers[:count], window[:count]
        if np.any(headers & LENGTH != self._dtype.itemsize):
            return self._skip(consumer + waiting, count)
        records = window[:, HEADER_SIZE : HEADER_SIZE + self._dtype.itemsize].copy()
        self._memory.consumer[0] = consumer + count * self._stride
        kept = headers & DISCARD == 0
        out = records.view(self._dtype).reshape(count)
        return out if kept.all() else out[kept]

    def _skip(self, position: int, count: int) -> NDArray[np.void]:
        """Nothing here can be trusted to be the beginning of a record: start again where the next is put."""
        self.malformed += count
        self._memory.consumer[0] = position
        return np.empty(0, self._dtype)

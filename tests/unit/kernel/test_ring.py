"""Whole spans of a ring buffer, laid out in memory as the kernel does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.kernel.ring import BUSY, DISCARD, HEADER_SIZE, Ring, RingMemory

RECORD = np.dtype([("number", "<u8"), ("rest", "V16")])
STRIDE = HEADER_SIZE + RECORD.itemsize
SIZE = 4096


class Producer:
    """The kernel's side: writes records, twice in memory as the double mapping shows them."""

    def __init__(self) -> None:
        self.memory = RingMemory(np.zeros(1, "<u8"), np.zeros(1, "<u8"), np.zeros(2 * SIZE, "u1"))
        self.ring = Ring(self.memory, RECORD)

    def write(self, offset: int, data: bytes) -> None:
        """Bytes at a position, in both mappings."""
        for i, byte in enumerate(data):
            at = (offset + i) % SIZE
            self.memory.data[[at, at + SIZE]] = byte

    def put(self, number: int, *, flags: int = 0, length: int = RECORD.itemsize) -> int:
        """One record; answers its position, or raises when there is no room."""
        position = int(self.memory.producer[0])
        if position + STRIDE - int(self.memory.consumer[0]) > SIZE:
            raise BufferError
        self.write(position, (length | flags).to_bytes(4, "little") + bytes(4))
        self.write(position + HEADER_SIZE, number.to_bytes(8, "little") + bytes([number % 251]) * 16)
        self.memory.producer[0] = position + STRIDE
        return position


def taken(producer: Producer) -> list[int]:
    """The numbers of the records taken, whose other bytes must be theirs."""
    records = producer.ring.take()
    for record in records:
        assert bytes(record["rest"]) == bytes([int(record["number"]) % 251]) * 16
    return records["number"].tolist()


def test_records_come_in_order_and_make_room():
    """The consumer's position follows."""
    producer = Producer()
    for number in range(23):
        producer.put(number)
    assert taken(producer) == list(range(23))
    assert producer.memory.consumer[0] == producer.memory.producer[0]
    assert taken(producer) == []


def test_a_record_that_is_still_written_holds_back_those_behind_it():
    """Order is kept; nothing half written is seen."""
    producer = Producer()
    producer.put(1)
    position = producer.put(2, flags=BUSY)
    producer.put(3)
    assert taken(producer) == [1]
    assert taken(producer) == []
    producer.write(position, RECORD.itemsize.to_bytes(4, "little"))
    assert taken(producer) == [2, 3]


def test_discarded_records_are_passed_over():
    """The program thought better of it."""
    producer = Producer()
    for number in range(7):
        producer.put(number, flags=DISCARD if number % 2 else 0)
    assert taken(producer) == [0, 2, 4, 6]


@pytest.mark.parametrize("count", [1, 3])
def test_records_are_the_takers_own(count):
    """Also a single one: the kernel may write over the ring at once, and the taker may write to its copy."""
    producer = Producer()
    for number in range(count):
        producer.put(number)
    records = producer.ring.take()
    producer.memory.data[:] = 0xFF
    assert records["number"].tolist() == list(range(count))
    records["number"] += 1


def test_garbage_is_counted_and_reading_goes_on_behind_it():
    """A length that is not the record's."""
    producer = Producer()
    producer.put(1)
    producer.put(2, length=RECORD.itemsize + 8)
    producer.put(3)
    assert taken(producer) == []
    assert producer.ring.malformed == 3
    producer.put(4)
    assert taken(producer) == [4]


@given(st.lists(st.integers(0, 200), max_size=40))
def test_any_rhythm_of_writing_and_reading_loses_nothing(bursts):
    """Round and round: what was put is taken, once and in order."""
    producer, put, got = Producer(), [], []
    for burst in bursts:
        for _ in range(burst):
            try:
                producer.put(len(put))
            except BufferError:
                break
            put.append(len(put))
        got += taken(producer)
    assert got == put

"""A request as the queue on disk keeps it."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from otel_bridge.model import Signal

SIGNALS = (Signal.TRACES, Signal.METRICS, Signal.LOGS)
"""On disk a signal is its place in this tuple."""


def signal_at(place: int) -> Signal:
    """The signal at a place of SIGNALS; what damage made of a place counts as traces."""
    return SIGNALS[place] if 0 <= place < len(SIGNALS) else Signal.TRACES


class Append(NamedTuple):
    """A request to be written; `taken` when a consumer has it in its hands already."""

    signal: Signal
    payload: bytes
    items: int
    received_ns: int
    taken: bool


class Record(NamedTuple):
    """A request read back."""

    number: int
    signal: Signal
    payload: bytes
    items: int
    received_ns: int


def checksum(number: int, signal: int, items: int, received_ns: int, payload: bytes) -> int:
    """CRC-32 over everything that a row says."""
    return zlib.crc32(payload, zlib.crc32(b"%d %d %d %d" % (number, signal, items, received_ns)))

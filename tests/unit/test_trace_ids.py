"""Trace ids as numbers."""

from __future__ import annotations

import numpy as np

from otel_bridge.batch import SPAN
from otel_bridge.trace_ids import halves, randomness


def test_randomness_is_the_last_seven_bytes():
    """Of each record, whatever stands around it, also in a part of an array."""
    spans = np.zeros(2, SPAN)
    ids = [
        bytes.fromhex("ffeeddccbbaa99887766554433221100"),
        bytes.fromhex("00000000000000ff0102030405060708"),
    ]
    spans["trace_id"] = np.frombuffer(b"".join(ids), "V16")
    assert randomness(spans).tolist() == [0x66554433221100, 0x02030405060708]
    assert halves(spans)[0].tolist() == [0xFFEEDDCCBBAA9988, 0xFF]
    assert randomness(spans[1:]).tolist() == [0x02030405060708]
    assert randomness(spans[:0]).tolist() == []

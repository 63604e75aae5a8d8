"""The structures of bpf/gate.h."""

from __future__ import annotations

import numpy as np

SLOTS = 64
ALL_PORTS = 0
WHOLE = 1 << 32
"""`admitted_share` of all connections."""

SLOT = np.dtype(
    [
        ("until_ns", "<u8"),
        ("admitted_share", "<u4"),
        ("trip_kills", "<u4"),
        ("trip_window_ns", "<u8"),
        ("trip_open_ns", "<u8"),
        ("_pad", "<u8", 4),
        ("refused", "<u8"),
        ("admitted", "<u8"),
        ("overruled", "<u8"),
        ("trips", "<u8"),
        ("kills", "<u8"),
        ("_pad2", "<u8", 3),
        ("killed_ns", "<u8", 8),
    ]
)
CONFIG = np.dtype([("netns", "<u4")])
U4 = np.dtype("<u4")

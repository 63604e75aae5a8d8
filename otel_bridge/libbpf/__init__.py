"""libbpf for everybody who loads BPF programs: the kernel probes and the gates of breakers."""

from __future__ import annotations

from pathlib import Path

OBJECTS = Path(__file__).parents[1] / "kernel" / "objects"
"""Where `make -C bpf` puts the compiled objects."""
BUILD_COMMAND = "make -C bpf"

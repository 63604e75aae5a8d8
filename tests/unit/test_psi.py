"""Memory pressure as the kernel writes it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge import psi
from otel_bridge.psi import Pressure, Stall

TEXT = (
    "some avg10=12.50 avg60=1.00 avg300=0.10 total=1500000\nfull avg10=0.25 avg60=0.50 avg300=0.05 total=7\n"
)


def test_both_lines_are_read():
    """Per cent and microseconds become shares and seconds."""
    assert psi.parse(TEXT) == Pressure(some=Stall(0.125, 1.5), full=Stall(0.0025, 7e-6))


@pytest.mark.parametrize("wrong", ["", TEXT.splitlines()[0], "full of it", "\0" * 99, "full avg10=x"])
def test_what_is_no_pressure_is_none(tmp_path, wrong):
    """Short files, and others; text or not; or no file."""
    assert psi.parse(wrong) is None
    (tmp_path / "memory.pressure").write_bytes(wrong.encode() + b"\xff")
    assert psi.read(tmp_path / "memory.pressure") is None
    assert psi.read(tmp_path / "nowhere") is None


def test_a_cgroup_s_file_is_in_the_unified_hierarchy(tmp_path):
    """Wherever that is mounted; nowhere, there is none."""
    mounts = tmp_path / "self" / "mountinfo"
    mounts.parent.mkdir()
    mounts.write_text("30 20 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
    mount = psi.unified_mount(tmp_path)
    assert mount is not None
    found = psi.file_of(mount, "/kubepods/x")
    assert found == Path("/sys/fs/cgroup/unified/kubepods/x/memory.pressure")
    mounts.write_text("30 20 0:26 / / rw - ext4 /dev/root rw\n")
    assert psi.unified_mount(tmp_path) is None

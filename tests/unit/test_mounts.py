"""The list of mounts, as the kernel writes it and as it never should."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_bridge.mounts import mounts

ROOT = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw"


@pytest.fixture
def listed(tmp_path):
    """Writes a list; gives where it is."""
    (tmp_path / "self").mkdir()

    def write(*lines):
        content = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
        (tmp_path / "self" / "mountinfo").write_bytes(content)
        return tmp_path

    return write


@pytest.mark.parametrize("optional", ["", "shared:7 ", "shared:7 master:1 propagate_from:2 "])
def test_a_kind_is_found_behind_any_optional_fields(listed, optional):
    """There may be none, or several; all mounts of the kind count, in their order."""
    proc = listed(
        ROOT,
        f"30 22 0:26 / /sys/fs/cgroup/unified rw,nosuid {optional}- cgroup2 cgroup2 rw",
        f"31 22 0:26 /kubepods /mnt/groups rw {optional}- cgroup2 cgroup2 rw",
        f"32 22 0:27 / /sys/fs/cgroup/memory rw {optional}- cgroup cgroup rw,memory",
    )
    assert mounts("cgroup2", proc) == [Path("/sys/fs/cgroup/unified"), Path("/mnt/groups")]
    assert mounts("cgroup", proc) == [Path("/sys/fs/cgroup/memory")]
    assert mounts("bpf", proc) == []


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (rb"/sys/fs/cgroup\040x", b"/sys/fs/cgroup x"),
        (rb"/a\011b\012c\134d", b"/a\tb\nc\\d"),
        (rb"/back\134040slash", rb"/back\040slash"),
        ("/größe".encode(), "/größe".encode()),
        (b"/not\xffutf8", b"/not\xffutf8"),
        (rb"/odd\77\8", rb"/odd\77\8"),
    ],
)
def test_a_path_is_what_it_was_before_it_was_written(listed, written, path):
    """The kernel escapes four characters; whatever else is in a path stands as it is."""
    line = b"30 22 0:26 / " + written + b" rw - bpf bpf rw"
    assert mounts("bpf", listed(line)) == [Path(os.fsdecode(path))]


def test_lines_of_another_form_are_left_out(listed):
    """Cut short, empty, without a hyphen, with nothing behind it."""
    good = "30 22 0:26 / /sys/fs/bpf rw - bpf bpf rw"
    wrong = ("", "30 22", "30 22 0:26 / /x rw - ", " - bpf bpf rw", "30 22 0:26 / - bpf", b"\xff\0")
    proc = listed(*wrong, good)
    assert mounts("bpf", proc) == [Path("/sys/fs/bpf")]


def test_this_machine_s_own_list_has_its_procfs():
    """As the kernel really writes it."""
    assert Path("/proc") in mounts("proc")

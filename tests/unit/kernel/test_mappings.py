"""News of mapped files, parsed from the bytes that the kernel writes; the real thing is in tests/kernel."""

from __future__ import annotations

import struct

import pytest

from otel_bridge.kernel.mappings import MappingNews, MappingsError, _ranges

LIBC = (0xFE, 0, 4711, 7)


def mapped(pid, key, name):
    """A PERF_RECORD_MMAP2 of linux/perf_event.h."""
    path = name.encode() + b"\0" * (8 - len(name.encode()) % 8)
    body = struct.pack("<IIQQQIIQQII", pid, pid, 0x7F00, 0x1000, 0, *key, 5, 2) + path
    return struct.pack("<IHH", 10, 2, 8 + len(body)) + body


def lost(count):
    """A PERF_RECORD_LOST."""
    return struct.pack("<IHHQQ", 2, 0, 24, 0, count)


@pytest.fixture
def news():
    """The parser without its buffers."""
    parser = MappingNews.__new__(MappingNews)
    parser.lost = 0
    return parser


def test_files_are_told_with_process_and_identity(news):
    """Names with spaces and of any length; what has no inode is no file."""
    data = mapped(7, LIBC, "/usr/lib/libc.so.6") + mapped(7, (0, 0, 0, 0), "[vdso]")
    data += mapped(8, (0xFE, 0, 12, 0), "/opt/my libs/x.so")
    assert [(found.pid, found.key, found.path) for found in news._parse(data, set())] == [
        (7, LIBC, "/usr/lib/libc.so.6"),
        (8, (0xFE, 0, 12, 0), "/opt/my libs/x.so"),
    ]


def test_dull_files_are_passed_over(news):
    """They are most of what is mapped."""
    data = mapped(7, LIBC, "/usr/lib/libc.so.6") * 3
    assert list(news._parse(data, {LIBC})) == []


def test_lost_records_are_counted_and_others_skipped(news):
    """Whoever reads them must look for himself."""
    data = struct.pack("<IHHQ", 3, 0, 16, 0) + lost(5) + mapped(7, LIBC, "/a")
    assert len(list(news._parse(data, set()))) == 1
    assert news.lost == 1


def test_a_record_that_is_none_ends_the_reading_with_an_error(news):
    """Not with an endless loop."""
    with pytest.raises(MappingsError, match="a record of 0 bytes"):
        list(news._parse(struct.pack("<IHH", 10, 0, 0) * 3, set()))


@pytest.mark.parametrize(("text", "cpus"), [("0\n", [0]), ("0-3,8,10-11\n", [0, 1, 2, 3, 8, 10, 11])])
def test_cpus_are_told_in_ranges(text, cpus):
    """As in /sys/devices/system/cpu/online."""
    assert list(_ranges(text)) == cpus

"""Block I/O of a span: counted against the reads that were made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_bridge.model import KernelEventKind, Match
from tests.support.kernel import ROOT, followed, monitoring

pytestmark = pytest.mark.usefixtures("each_backend")

PRIME = 23
SIZE = 4096


@pytest.fixture
def file_on_disk(tmp_path):
    """A file whose reads go to a block device."""
    for directory in (tmp_path, ROOT / "build"):
        directory.mkdir(exist_ok=True)
        device = directory.stat().st_dev
        if Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").exists():
            path = directory / f"direct-io-{os.getpid()}"
            path.write_bytes(os.urandom(PRIME * SIZE))
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
            yield path
            path.unlink()
            return
    pytest.skip("needs a temporary directory on a block device (set TMPDIR)")


def test_direct_reads_are_summed_per_span_and_device(worker, file_on_disk):
    """Each read past the page cache is one request of its size."""
    with monitoring("block", block={"latency_threshold": "10s"}) as monitor:
        followed(monitor, worker.pid)
        # One after the other: a busy disk's queue makes one request of neighbours that two threads ask for.
        for n in (1, 2, 3):
            job = {"do": "read_direct", "span": n, "path": str(file_on_disk), "size": SIZE, "times": PRIME}
            worker.do(job)
    for span in (1, 2, 3):
        sums = monitor.events.on_span(KernelEventKind.BLOCK_SUM, span)
        assert sums["count"].sum() == PRIME
        assert sums["bytes"].sum() == PRIME * SIZE
        assert sums["errors"].sum() == 0
        assert set(sums["match"]) == {Match.THREAD}
        assert 0 < sums["latency_max_ns"].max() <= sums["latency_ns"].sum()
        assert sums["queue_depth_max"].min() >= 1
        assert len({(int(row["major"]), int(row["minor"])) for row in sums}) == 1
    assert not len(monitor.events.on_span(KernelEventKind.BLOCK_IO, 1))


def test_slow_requests_are_events(worker, file_on_disk):
    """With the threshold at zero every request is slow."""
    with monitoring("block", block={"latency_threshold": 0}) as monitor:
        followed(monitor, worker.pid)
        job = {"do": "read_direct", "span": 1, "path": str(file_on_disk), "size": SIZE, "times": PRIME}
        worker.do(job)
    slow = monitor.events.on_span(KernelEventKind.BLOCK_IO, 1)
    assert len(slow) == PRIME
    assert set(slow["bytes"]) == {SIZE}
    assert set(slow["operation"]) == {0}
    assert (slow["duration"] > 0).all()


def test_devices_have_totals_without_spans(worker, file_on_disk):
    """What nobody publishes a span for still counts for the device."""
    with monitoring("block") as monitor:
        before = {name: row["requests"] for name, row in monitor.devices().items()}
        worker.do({"do": "read_direct", "path": str(file_on_disk), "size": SIZE, "times": PRIME})
        after = monitor.devices()
    grown = {name: row["requests"] - before.get(name, 0) for name, row in after.items()}
    assert max(grown.values()) >= PRIME
    assert all(row["in_flight"] >= 0 for row in after.values())

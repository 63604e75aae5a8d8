"""Memory: OOM kills and reclaim inside a memory cgroup of the test's own."""

from __future__ import annotations

import os

import numpy as np
import pytest

from otel_bridge.model import KernelEventKind, Match
from tests.support.cgroups import MIB, MemoryCgroup, MissingControllerError
from tests.support.kernel import followed, monitoring

pytestmark = pytest.mark.usefixtures("each_backend")

LIMIT = 64 * MIB


@pytest.fixture
def cgroup():
    """A cgroup with 64 MiB."""
    try:
        group = MemoryCgroup(f"otel-bridge-test-{os.getpid()}", LIMIT)
    except MissingControllerError as error:
        pytest.skip(str(error))
    yield group
    group.remove()


def test_an_oom_kill_is_told_of_the_process_and_of_each_span_it_was_at(start_worker, cgroup):
    """Three processes are killed, each while two threads work on spans."""
    workers = [start_worker() for _ in range(3)]
    with monitoring("memory") as monitor:
        for number, worker in enumerate(workers):
            followed(monitor, worker.pid)
            cgroup.add(worker.pid)
            worker.send(
                {"do": "sleep", "span": 2 * number + 1, "seconds": 300, "times": 1, "tell": True},
                {"do": "fill_memory", "span": 2 * number + 2, "size": MIB, "times": 4096},
            )
            worker.process.wait(120)
        pids = {worker.pid for worker in workers}
    kills = monitor.events.of(KernelEventKind.OOM_KILL)
    of_processes = kills[(kills["match"] == Match.NONE) & np.isin(kills["tgid"], list(pids))]
    assert sorted(of_processes["tgid"].tolist()) == sorted(pids)
    on_spans = [kill for kill in kills if kill["match"] == Match.THREAD]
    assert sorted(int.from_bytes(bytes(kill["span_id"]), "big") for kill in on_spans) == [1, 2, 3, 4, 5, 6]


def test_reclaim_is_time_of_the_span_that_had_to_do_it(worker, cgroup, tmp_path):
    """A file larger than the limit is read through the page cache."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(3 * LIMIT // MIB):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        # What is in the page cache already is charged to whoever wrote it.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with monitoring("memory", memory={"reclaim_threshold": 0}) as monitor:
        followed(monitor, worker.pid)
        cgroup.add(worker.pid)
        worker.do({"do": "read_file", "span": 1, "path": str(path), "times": 2})
    worker.stop()
    sums = monitor.events.on_span(KernelEventKind.MEMORY_SUM, 1)
    events = monitor.events.on_span(KernelEventKind.RECLAIM, 1)
    assert len(events) > 0
    assert set(events["memcg"]) == {1}
    # The two ways of telling agree on every single reclaim.
    assert sums["reclaim_count"].sum() == len(events)
    assert sums["reclaim_ns"].sum() == events["duration"].sum()
    # At least what does not fit was reclaimed.
    assert events["reclaimed_pages"].sum() * os.sysconf("SC_PAGESIZE") >= 2 * LIMIT

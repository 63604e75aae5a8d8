"""Memory pressure of a followed process's cgroup, held against the kernel's own figure."""

from __future__ import annotations

import os

import pytest

from otel_bridge import catalog, psi
from tests.support.cgroups import MIB, MemoryCgroup, MissingControllerError
from tests.support.kernel import eventually, followed, monitoring

LIMIT = 32 * MIB


@pytest.fixture
def limited():
    """A cgroup with 32 MiB."""
    try:
        group = MemoryCgroup(f"otel-bridge-pressure-{os.getpid()}", LIMIT)
    except MissingControllerError as error:
        pytest.skip(str(error))
    yield group
    group.remove()


@pytest.fixture
def unified(limited):
    """A cgroup of the unified hierarchy, the limited one where that is version 2."""
    mount = psi.unified_mount()
    if mount is None or not (mount / "cgroup.procs").exists():
        pytest.skip("needs the unified cgroup hierarchy: mount -t cgroup2 none /sys/fs/cgroup/unified")
    if limited.path.is_relative_to(mount):
        yield limited.path
        return
    path = mount / limited.path.name
    path.mkdir()
    yield path
    path.rmdir()


def test_a_cgroup_that_reclaims_all_the_time_is_under_pressure(limited, unified, start_worker, tmp_path):
    """Its process reads a file that does not fit in it."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.write(os.urandom(3 * LIMIT))
        file.flush()
        os.fsync(file.fileno())
        # What is in the page cache already is charged to whoever wrote it.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    worker = start_worker()
    (unified / "cgroup.procs").write_text(str(worker.pid))
    limited.add(worker.pid)
    name = f"/{unified.name}"
    stalled = {"cgroup": name, "tasks": "some"}
    with monitoring("memory") as monitor:
        followed(monitor, worker.pid)
        # From the first look on the count is the kernel's.
        eventually("the cgroup is shown", lambda: name in shown(monitor))
        before = psi.read(unified / "memory.pressure")
        worker.do({"do": "read_file", "span": 1, "path": str(path), "times": 5})
        after = psi.read(unified / "memory.pressure")
    assert before is not None
    assert after is not None
    grown = after.some.total - before.some.total
    assert grown > 0, "nothing was reclaimed"
    assert monitor.telemetry.value(catalog.KERNEL_MEMORY_STALLED, **stalled) == pytest.approx(grown, rel=0.05)
    assert shown(monitor) >= {name, "/"}
    read = [reading.value for reading in monitor.readings if reading.labels == stalled]
    assert read
    assert all(0 <= share <= 1 for share in read)


def shown(monitor) -> set[str]:
    """The cgroups that have a share."""
    [family] = monitor.telemetry.gauge(catalog.KERNEL_MEMORY_PRESSURE).collect()
    return {sample.labels["cgroup"] for sample in family.samples}

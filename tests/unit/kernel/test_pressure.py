"""Memory pressure of cgroups, as files tell it: procfs and the hierarchy are directories here."""

from __future__ import annotations

import pytest
import structlog

from otel_bridge import catalog
from otel_bridge.errors import BridgeError
from otel_bridge.kernel.pressure import (
    MACHINE,
    MAX_CGROUPS,
    RECHECK,
    MemoryPressure,
    unified_cgroup,
)
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock


def text(some=0.0, full=0.0, some_total=0, full_total=0):
    """A memory.pressure file."""
    return (
        f"some avg10={some:.2f} avg60=0.10 avg300=0.20 total={some_total}\n"
        f"full avg10={full:.2f} avg60=0.00 avg300=0.00 total={full_total}\n"
    )


class Readings(list):
    """A ReadingSink that keeps what it is given."""

    def take_readings(self, readings):
        """See `readings.ReadingSink`."""
        self.extend(readings)


class Machine:
    """A procfs, a cgroup hierarchy, and what is shown of their pressure."""

    def __init__(self, path, *, unified=True) -> None:
        self.proc, self.cgroups = path / "proc", path / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "pressure").mkdir()
        self.cgroups.mkdir()
        kind = "cgroup2" if unified else "cgroup"
        (self.proc / "self" / "mountinfo").write_text(f"30 24 0:26 / {self.cgroups} rw - {kind} cgroup rw\n")
        (self.proc / "pressure" / "memory").write_text(text())
        self.clock, self.telemetry, self.readings = FakeClock(), Telemetry(), Readings()

    def open(self):
        """Begin to look."""
        return MemoryPressure(self.telemetry, self.clock, [self.readings], self.proc)

    def put(self, pid, cgroup):
        """A process into a cgroup, which is made."""
        (self.proc / str(pid)).mkdir(exist_ok=True)
        (self.proc / str(pid) / "cgroup").write_text(f"4:memory:/elsewhere\n0::{cgroup}\n")
        (self.cgroups / cgroup.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def press(self, cgroup, **figures):
        """Its pressure from now on."""
        (self.cgroups / cgroup.lstrip("/") / "memory.pressure").write_text(text(**figures))

    def shown(self):
        """Cgroups and tasks that have a share, with it."""
        [family] = self.telemetry.gauge(catalog.KERNEL_MEMORY_PRESSURE).collect()
        return {(one.labels["cgroup"], one.labels["tasks"]): one.value for one in family.samples}

    def stalled(self, cgroup, tasks="some"):
        """Seconds counted so far."""
        return self.telemetry.value(catalog.KERNEL_MEMORY_STALLED, cgroup=cgroup, tasks=tasks)


@pytest.fixture
def machine(tmp_path):
    """A calm machine without followed processes."""
    return Machine(tmp_path)


def test_followed_processes_cgroups_and_the_machine_are_shown(machine):
    """Each cgroup once, also to who takes readings."""
    for pid, cgroup in ((7, "/a"), (8, "/a"), (9, "/b/c")):
        machine.put(pid, cgroup)
    machine.press("/a", some=40, full=10)
    machine.press("/b/c")
    pressure = machine.open()
    pressure.update({7, 8, 9})
    assert machine.shown() == {
        ("/", "some"): 0,
        ("/", "full"): 0,
        ("/a", "some"): 0.4,
        ("/a", "full"): 0.1,
        ("/b/c", "some"): 0,
        ("/b/c", "full"): 0,
    }
    assert len(machine.readings) == 6
    [reading] = [one for one in machine.readings if one.labels == {"cgroup": "/a", "tasks": "some"}]
    assert (reading.metric, reading.value) == (catalog.KERNEL_MEMORY_PRESSURE.name, 0.4)
    assert reading.time == machine.clock.time_ns()


def test_stalled_time_counts_from_the_first_look(machine):
    """What was before is not counted; a cgroup made anew under the name begins at nothing."""
    machine.put(7, "/a")
    pressure = machine.open()
    for total in (5_000_000, 5_250_000, 6_000_000, 500_000):
        machine.press("/a", some_total=total)
        pressure.update({7})
    assert machine.stalled("/a") == pytest.approx(1.5)
    assert machine.stalled("/a", "full") == 0


async def test_what_no_followed_process_is_in_is_shown_no_more(machine):
    """The process moved, ended, or its cgroup is gone."""
    machine.put(7, "/a")
    machine.press("/a")
    machine.put(8, "/b")
    machine.press("/b")
    pressure = machine.open()
    pressure.update({7, 8})
    machine.put(7, "/c")
    machine.press("/c")
    await machine.clock.advance(RECHECK)
    pressure.update({7})
    assert {cgroup for cgroup, _ in machine.shown()} == {MACHINE, "/c"}
    (machine.cgroups / "c" / "memory.pressure").unlink()
    pressure.update({7})
    assert {cgroup for cgroup, _ in machine.shown()} == {MACHINE}
    pressure.clear()
    assert machine.shown() == {}


def test_a_process_is_not_asked_at_every_look(machine):
    """Its cgroup seldom changes."""
    machine.put(7, "/a")
    machine.press("/a")
    pressure = machine.open()
    pressure.update({7})
    (machine.proc / "7" / "cgroup").unlink()
    pressure.update({7})
    assert ("/a", "some") in machine.shown()


@pytest.mark.parametrize("cgroup", ["/", "/../outside/of/the/namespace"])
def test_cgroups_that_have_no_file_here_are_left_to_the_machine(machine, cgroup):
    """The root's figures are the machine's."""
    (machine.proc / "7").mkdir()
    (machine.proc / "7" / "cgroup").write_text(f"0::{cgroup}\n")
    machine.open().update({7, 8})
    assert {name for name, _ in machine.shown()} == {MACHINE}


def test_without_the_unified_hierarchy_the_machine_remains(tmp_path):
    """Version 1 counts no pressure by cgroup."""
    machine = Machine(tmp_path, unified=False)
    machine.put(7, "/a")
    machine.press("/a")
    machine.open().update({7})
    assert {name for name, _ in machine.shown()} == {MACHINE}


def test_a_flood_of_cgroups_is_bounded_and_said_once(machine):
    """Those that are shown stay."""
    count = MAX_CGROUPS + 7
    for pid in range(1, count + 1):
        machine.put(pid, f"/{pid:04}")
        machine.press(f"/{pid:04}")
    pressure = machine.open()
    pressure.update({count})
    with structlog.testing.capture_logs() as lines:
        pressure.update(range(1, count + 1))
        pressure.update(range(1, count + 1))
    assert [(line["cgroups"], line["shown"]) for line in lines] == [(count, MAX_CGROUPS)]
    cgroups = {name for name, _ in machine.shown()} - {MACHINE}
    assert len(cgroups) == MAX_CGROUPS
    assert f"/{count:04}" in cgroups


@pytest.mark.parametrize("content", [None, "", "nonsense\n"])
def test_a_kernel_that_counts_none_says_what_mends_it(machine, content):
    """Booted with psi=0, or built without."""
    path = machine.proc / "pressure" / "memory"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(BridgeError, match="mend with: boot with psi=1"):
        machine.open()


def test_a_process_that_is_gone_has_no_cgroup():
    """The real procfs."""
    assert unified_cgroup(1 << 30) == ""

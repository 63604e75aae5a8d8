"""What a gate writes into its slots, without a kernel."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from otel_bridge.breakers import State
from otel_bridge.control.gate.config import GateConfig
from otel_bridge.control.gate.gate import KernelGate
from otel_bridge.control.gate.records import SLOT
from otel_bridge.testing import FakeClock
from tests.support.control import World
from tests.support.gates import change

LEASE = 30.0


class Gate(KernelGate):
    """A gate over two slots of one namespace, in memory of the test's own."""

    def __init__(self, clock=None, **config):
        self.clock = clock or FakeClock()
        self.slots = np.zeros(2, SLOT)
        settings = {"targets": ["*"], "ports": [8000, 8001], "lease": LEASE, "half_open_share": 0.25}
        super().__init__("llama", GateConfig.model_validate(settings | config), self.clock)
        self.missing = ""
        self.attach(1, [self.slots[:1], self.slots[1:]], settle=True)

    def turn(self, state, seconds=0.0, target="llama"):
        """A change, as the board tells it."""
        self.apply(change(target, state, self.clock.monotonic() + seconds if seconds else 0.0))

    @property
    def shut_for(self):
        """Seconds for which both slots are shut; 0: they are open."""
        first, second = self.slots["until_ns"].tolist()
        assert first == second
        return round(max(0.0, first / 1e9 - self.clock.monotonic()), 6)

    @property
    def share(self):
        """The share that both admit."""
        first, second = self.slots["admitted_share"].tolist()
        assert first == second
        return first / 2**32


async def test_the_kernels_lease_is_the_breakers_or_the_bridges_whichever_ends_first():
    """A long open is renewed while the bridge lives."""
    gate = Gate()
    gate.turn(State.OPEN, 600.0)
    assert gate.shut_for == LEASE
    await gate.clock.advance(20.0)
    assert gate.shut_for == 10.0
    gate.renew()
    assert gate.shut_for == LEASE
    await gate.clock.advance(570.0)
    gate.renew()
    assert gate.shut_for == 10.0


async def test_an_open_that_has_ended_is_not_renewed():
    """The board has not looked yet."""
    gate = Gate()
    gate.turn(State.OPEN, 5.0)
    await gate.clock.advance(5.0)
    gate.renew()
    assert gate.shut_for == 0.0


async def test_an_open_that_has_ended_does_not_hide_a_half_open():
    """Of another target; whichever the board looks at first."""
    gate = Gate()
    gate.turn(State.OPEN, 5.0, target="llama/8b")
    gate.turn(State.HALF_OPEN, target="llama/70b")
    await gate.clock.advance(5.0)
    gate.renew()
    assert (gate.shut_for, gate.share) == (LEASE, 0.25)


def test_half_open_admits_its_share_and_open_nobody():
    """Closed again, the share means nothing."""
    gate = Gate()
    gate.turn(State.HALF_OPEN)
    assert (gate.shut_for, gate.share) == (LEASE, 0.25)
    gate.turn(State.OPEN, 60.0)
    assert (gate.shut_for, gate.share) == (LEASE, 0.0)
    gate.turn(State.CLOSED)
    assert gate.shut_for == 0.0


@pytest.mark.parametrize("first", [State.OPEN, State.HALF_OPEN])
def test_the_strictest_target_counts_whichever_came_first(first):
    """And the longest of several opens."""
    gate = Gate()
    second = State.HALF_OPEN if first is State.OPEN else State.OPEN
    gate.turn(first, 20.0 if first is State.OPEN else 0.0, target="llama/8b")
    gate.turn(second, 20.0 if second is State.OPEN else 0.0, target="llama/70b")
    assert (gate.shut_for, gate.share) == (20.0, 0.0)
    gate.turn(State.OPEN, 25.0, target="llama/1b")
    assert gate.shut_for == 25.0


def test_what_the_kernel_counted_before_is_not_counted_again():
    """A gate that was taken over."""
    gate = Gate()
    gate.slots["refused"] = [3, 4]
    assert gate.count()["refused"] == 7
    gate.attach(1, [gate.slots[:1], gate.slots[1:]], settle=True)
    gate.slots["refused"][0] += 5
    gate.slots["trips"] = 1
    assert gate.count() == {"refused": 5, "admitted": 0, "overruled": 0, "trips": 1}


def test_a_gate_that_holds_nothing_says_so_only_when_it_should_shut():
    """The audit log has it; letting traffic pass needs no gate."""
    gate = Gate()
    gate.missing = "nothing runs"
    with pytest.raises(OSError, match="nothing runs"):
        gate.turn(State.OPEN, 5.0)
    gate.turn(State.CLOSED)


def test_a_dry_run_leaves_the_kernel_no_trip_of_its_own():
    """Nothing is refused."""
    kills = {"target": "llama"}
    assert Gate(kills=kills).slots["trip_kills"].tolist() == [3, 3]
    assert Gate(kills=kills, dry_run=True).slots["trip_kills"].tolist() == [0, 0]


async def test_behind_the_board():
    """Allow-list, dry run and audit are those of every action."""
    world = World()
    gates = {
        name: Gate(world.clock, **config)
        for name, config in {
            "real": {"targets": ["llama*"]},
            "dry": {"targets": ["llama*"], "dry_run": True},
            "other": {"targets": ["qwen*"]},
        }.items()
    }
    for name, gate in gates.items():
        gate.name = name
        world.board.add_gate(gate, gate.config)
    world.sources.take_kills("llama/8b", "OOM")
    assert world.state("llama/8b") == "open"
    assert {name: gate.shut_for for name, gate in gates.items()} == {"real": LEASE, "dry": 0.0, "other": 0.0}
    acted = [(entry.actor, entry.cause) for entry in world.history() if entry.event == "action"]
    assert sorted(acted) == [("dry", "dry_run"), ("real", "done")]
    await world.pass_time(60.0)
    assert gates["real"].share == 0.25


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "name the service"),
        ({"process": "llama", "pid": 1}, "found process and pid"),
        ({"ports": [0]}, "greater than or equal to 1"),
        ({"ports": [8000], "half_open_share": 1.5}, "less than or equal to 1"),
        ({"ports": [8000], "kills": {"kills": 9, "target": "llama"}}, "less than or equal to 8"),
        ({"namespace": "/run/netns/llama", "mechanism": "cgroup"}, "no control group"),
        ({"namespace": "/run/netns/llama", "kills": {"target": "llama", "allocations": {}}}, "processes"),
        ({"ports": [8000], "kills": {"target": "llama", "allocations": {"failed": -1}}}, "greater than"),
        ({"ports": [8000], "kills": {"target": "x", "allocations": {"functions": []}}}, "at least 1 item"),
        ({"ports": [8000], "lease": "10ms"}, "greater than or equal to 1"),
        ({"ports": [8000], "targets": []}, "at least 1 item"),
    ],
)
def test_a_bad_configuration(config, says):
    """Each says what is wrong."""
    with pytest.raises(ValidationError, match=says):
        GateConfig.model_validate({"targets": ["*"]} | config)

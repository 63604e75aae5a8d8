"""What the overhead bench concludes from its rounds."""

from __future__ import annotations

import random

import pytest

from tests.bench.join.costs import Costs, figures_of
from tests.bench.join.overhead import Overhead, Round

COSTS = Costs({"sched": (23_000, 46, 5)}, {"sched": (1, 1, 1)}, 1)


def rounds(cpu: float, paces: list[float], bridge: float = 1e-5) -> list[Round]:
    """Of requests that take so much CPU on a machine at pace 1, on machines of these paces."""
    return [Round(1 / (cpu * pace), cpu * pace, bridge, pace) for pace in paces]


def test_what_is_lost_is_lost_at_the_pace_of_the_machine():
    """Every round meets another machine, up to twice as slow."""
    chance = random.Random(23)
    off, on = ([chance.uniform(1, 2) for _ in range(31)] for _ in range(2))
    found = Overhead(rounds(1e-3, off), rounds(1.02e-3, on, 3e-5), COSTS)
    assert found.loss("rate") == pytest.approx(1 - 1 / 1.02)
    assert found.loss("server_cpu") == pytest.approx(0.02)
    assert found.bridge_cpu == pytest.approx(2e-5)
    low, high = found.interval("rate")
    assert low == pytest.approx(high)


def test_disturbed_rounds_move_nothing():
    """Something else took the machine in most of them, in ways that its pace does not show."""
    off, on = rounds(1e-3, [1.0] * 40), rounds(1.02e-3, [1.0] * 40)
    for number in range(25):
        on[number] = Round(1e3 / (2 + number), 1e-3 * (2 + number), 3e-5, 1.0)
    assert Overhead(off, on, COSTS).loss("server_cpu") == pytest.approx(0.02)
    assert Overhead(off, on, COSTS).loss("rate") == pytest.approx(1 - 1 / 1.02)


def test_the_interval_holds_what_is_lost_as_often_as_it_says():
    """Rounds as they are: something slows some of them down, and nothing makes one fast."""
    chance = random.Random(47)

    def some(cpu: float) -> list[Round]:
        return [
            Round(1 / taken, taken, 1e-5, 1.0)
            for taken in (cpu * (1 + chance.expovariate(20)) for _ in range(60))
        ]

    held = 0
    for _ in range(60):
        low, high = Overhead(some(1e-3), some(1.05e-3), COSTS).interval("server_cpu")
        held += low <= 0.05 <= high
    assert held >= 53


@pytest.mark.parametrize(("slower", "exceeds"), [(1.02, False), (1.05, True)])
def test_a_level_is_exceeded_where_the_whole_interval_lies_above_it(slower, exceeds):
    """The bench fails then."""
    off, on = rounds(1e-3, [1.0] * 40), rounds(1e-3 * slower, [1.0] * 40)
    assert Overhead(off, on, COSTS).exceeds_level is exceeds


def test_a_loss_that_may_be_chance_exceeds_nothing():
    """Half of the rounds lost a tenth, the others nothing."""
    off, on = rounds(1e-3, [1.0] * 10), rounds(1e-3, [1.0] * 5) + rounds(1.1e-3, [1.0] * 5)
    assert not Overhead(off, on, COSTS).exceeds_level


def test_few_rounds_say_little():
    """Of three pairs the interval is as wide as they lie apart."""
    off = rounds(1e-3, [1.0] * 3)
    on = [*rounds(1e-3, [1.0]), *rounds(1.1e-3, [1.0]), *rounds(1.2e-3, [1.0])]
    low, high = Overhead(off, on, COSTS).interval("server_cpu")
    assert low == pytest.approx(0.0, abs=1e-9)
    assert high == pytest.approx(0.2)


def test_costs_are_of_all_servers_together_and_no_probe_is_left_out():
    """One that nothing was measured of is an error, not a gap."""
    other = Costs({"sched": (1_000, 2, 0)}, {"sched": (1, 1, 1)}, 1)
    assert figures_of([COSTS, other]) == {"kernel.sched.ns_per_event": 500.0}
    with pytest.raises(RuntimeError, match="probe tls"):
        figures_of([Costs({"tls": (0, 0, 0)}, {}, 1)])

"""What the overhead bench concludes from its rounds."""

from __future__ import annotations

import math
import random

import pytest

from tests.bench.join.costs import Costs, figures_of
from tests.bench.join.overhead import Overhead, Round, interval

COSTS = Costs({"sched": (23_000, 46, 5)}, {"sched": (1, 1, 1)}, 1)


def overhead(*pairs: tuple[float, float]) -> Overhead:
    """Rounds of these rates, without and with the probes; CPU a request goes as they do."""
    off, on = zip(*pairs, strict=True)
    return Overhead(
        [Round(rate, 1 / rate, 1e-5) for rate in off], [Round(rate, 1 / rate, 3e-5) for rate in on], COSTS
    )


def test_what_is_lost_is_compared_within_pairs():
    """The machine is twice as fast in the second half; the probes take 2 % all the time."""
    found = overhead((1000, 980), (1000, 980), (2000, 1960), (2000, 1960))
    assert found.loss("rate") == pytest.approx(0.02)
    assert found.loss("server_cpu") == pytest.approx(1 / 0.98 - 1)
    assert found.bridge_cpu == pytest.approx(2e-5)


def test_one_disturbed_round_moves_nothing():
    """Something else took the machine for a while."""
    assert overhead((1000, 990), (1000, 200), (1000, 990)).loss("rate") == pytest.approx(0.01)


@pytest.mark.parametrize("count", [6, 8, 12, 16, 31])
def test_the_interval_holds_the_median_as_often_as_it_says(count):
    """By exact counting: as many values are left out at each end as the confidence allows, and no more."""
    low, high = interval([float(value) for value in range(count)])
    outside = int(low)
    assert high == count - 1 - outside
    assert 2 * sum(math.comb(count, n) for n in range(outside + 1)) / 2**count <= 0.05
    assert 2 * sum(math.comb(count, n) for n in range(outside + 2)) / 2**count > 0.05


def test_the_interval_holds_for_a_lopsided_distribution():
    """As rounds are, which something may slow down but nothing speeds up."""
    chance = random.Random(23)
    median = math.log(2)
    held = 0
    for _ in range(1000):
        low, high = interval([chance.expovariate(1) for _ in range(16)])
        held += low <= median <= high
    assert held > 930


def test_the_interval_of_few_values_is_all_of_them():
    """Three say little."""
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert interval([1.0]) == (1.0, 1.0)


def test_costs_are_of_all_servers_together_and_no_probe_is_left_out():
    """One that nothing was measured of is an error, not a gap."""
    other = Costs({"sched": (1_000, 2, 0)}, {"sched": (1, 1, 1)}, 1)
    assert figures_of([COSTS, other]) == {"kernel.sched.ns_per_event": 500.0}
    with pytest.raises(RuntimeError, match="probe tls"):
        figures_of([Costs({"tls": (0, 0, 0)}, {}, 1)])

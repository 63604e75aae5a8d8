"""The rate, second by second; every expected number was worked out by hand from A5 of the requirements.

max(1 %, 10 % / log10(100 x rise)): 30 % gives 10 % / 1.4771 = 6.770 %, 50 % gives 10 % / 1.6990 = 5.886 %.
"""

from __future__ import annotations

import numpy as np
import pytest

from otel_bridge.processors.sample.config import RateConfig
from otel_bridge.processors.sample.rate import RateController

MS = 1_000_000


class Simulation:
    """Seconds of traffic, one after the other."""

    def __init__(self, **config) -> None:
        self.controller = RateController(RateConfig(**config), 1000.0)
        self.second = 0

    def run(self, seconds: int, requests: int, p99_ms: float = 120.0) -> list[float]:
        """The rate at the end of each second, in per cent.

        Two of each hundred requests take `p99_ms`, all others 10 ms: the P99 is `p99_ms`.
        """
        slow = -(-2 * requests // 100)
        durations = np.full(requests, 10 * MS, np.uint64)
        durations[:slow] = round(p99_ms * MS)
        rates = []
        for _ in range(seconds):
            self.controller.observe(1000.0 + self.second + 0.5, durations)
            self.second += 1
            rates.append(self.controller.rate(1000.0 + self.second) * 100)
        return rates


def near(*rates):
    """To a thousandth of a per cent."""
    return pytest.approx(list(rates), abs=0.0005)


def test_steady_traffic_stays_at_the_baseline():
    """5 %, from the first second on: a start is no surge."""
    assert set(Simulation().run(300, 1000)) == {5.0}


def test_a_step_of_half_as_many_requests_again():
    """A window later the whole step is seen; what comes after it changes nothing but the end of the hold."""
    simulation = Simulation()
    simulation.run(60, 100)
    # k seconds into the step the window holds 1000 + 50 k requests, the one before it 1000.
    assert simulation.run(5, 150) == [5.0] * 5
    # 30, 35, 40, 45, 50 %: logarithms 1.47712, 1.54407, 1.60206, 1.65321, 1.69897.
    assert simulation.run(5, 150) == near(6.7699, 6.4764, 6.2420, 6.0488, 5.8859)
    # The window before fills up too: 42.9, 36.4, 30.4 % still are surges, but smaller ones of the same.
    assert simulation.run(3, 150) == near(5.8859, 5.8859, 5.8859)
    # Then 25 % and less: the rate stands for 60 s after the last surge, and ends.
    assert simulation.run(59, 150) == near(*[5.8859] * 59)
    assert simulation.run(60, 150) == [5.0] * 60


def test_just_below_and_just_at_the_threshold():
    """29 % is nothing, 30 % is a surge."""
    for requests, rate in ((129, 5.0), (130, 6.7699)):
        simulation = Simulation()
        simulation.run(60, 100)
        assert simulation.run(10, requests)[-1] == pytest.approx(rate, abs=0.0005)


def test_a_very_steep_rise_stops_at_the_minimum():
    """A rise by 10^8 would give 1 %; by 99 times it is 10 % / log10(9900) = 2.503 %."""
    simulation = Simulation()
    simulation.run(60, 100)
    assert simulation.run(10, 10_000)[-1] == pytest.approx(2.5027, abs=0.0005)
    # As far as a tenth of the curve falls, the default minimum is what holds: 1 % / 3.9957 would be 0.25 %.
    steep = Simulation(surge=0.01)
    steep.run(60, 100)
    assert steep.run(10, 10_000)[-1] == 1.0


def test_a_p99_from_120_to_180_milliseconds():
    """After 16 seconds two windows in a row have it, and without a rise the rate is 10 % / log10(10).

    A window's P99 is the 11th slowest of its 1000. Each second brings two that are slow: after six seconds
    there are twelve, and ten seconds later the window before has them too.
    """
    simulation = Simulation()
    simulation.run(60, 100)
    assert simulation.run(15, 100, 180.0) == [5.0] * 15
    # The baseline is the median of the windows so far: it stays until half of them have seen the new P99.
    assert simulation.run(50, 100, 180.0) == near(*[10.0] * 50)


def test_a_p99_that_stays_becomes_the_baseline():
    """And 60 s later the rate is what it was."""
    simulation = Simulation()
    simulation.run(300, 100)
    risen = simulation.run(600, 100, 180.0)
    # 30 windows make the median. At 150 s 15 of them are at 180, the median is (120 + 180) / 2 = 150, and
    # 180 / 150 = 1.2 is below the inflection of 1.3. The last trigger was at 149 s; the rate ends at 209 s.
    assert risen[:15] == [5.0] * 15
    assert risen[15:208] == near(*[10.0] * 193)
    assert set(risen[208:]) == {5.0}


@pytest.mark.parametrize(("seconds", "triggers"), [(11, False), (12, True)])
def test_a_spike_has_to_fill_two_windows_in_a_row(seconds, triggers):
    """One of L seconds makes the last window's P99 from second 6 to L + 4, the other's ten seconds later."""
    simulation = Simulation()
    simulation.run(60, 100)
    rates = simulation.run(seconds, 100, 180.0) + simulation.run(60, 100)
    assert rates[:15] == [5.0] * 15
    assert (rates[15] == pytest.approx(10.0)) is triggers
    assert triggers or set(rates) == {5.0}


def test_a_flap_keeps_one_rate():
    """Ten seconds of 150, ten of 100, and so on: each rise is as large, and the hold bridges the falls."""
    simulation = Simulation()
    simulation.run(60, 100)
    simulation.run(10, 150)
    for _ in range(10):
        assert simulation.run(10, 100) == near(*[5.8859] * 10)
        assert simulation.run(10, 150) == near(*[5.8859] * 10)


def test_a_rise_and_a_p99_together_are_judged_by_the_rise():
    """50 % of rise stands, though the P99 alone would say 10 %."""
    simulation = Simulation()
    simulation.run(60, 100)
    assert simulation.run(40, 150, 180.0)[-1] == pytest.approx(5.8859, abs=0.0005)


def test_few_requests_are_no_traffic():
    """One request a second where there were none is no surge: windows count as 20 at least."""
    simulation = Simulation()
    assert set(simulation.run(60, 0) + simulation.run(60, 2, 900.0)) == {5.0}


def test_the_first_requests_after_a_night_are_judged_from_the_least_window():
    """From 20 at least to 1000 in a window: a rise of 49, 10 % / log10(4900) = 2.7095 %."""
    simulation = Simulation()
    simulation.run(7200, 0)
    assert simulation.run(10, 100)[-1] == pytest.approx(2.7095, abs=0.0005)


def test_a_long_silence_between_two_calls():
    """Nobody asks for a day; the traffic before it is forgotten, and the time goes on from there."""
    controller = RateController(RateConfig(), 0.0)
    burst = np.full(100, 10 * MS, np.uint64)
    for second in range(60):
        controller.observe(second + 0.5, burst)
    assert controller.rate(86_400.0) == 0.05
    controller.observe(86_400.5, burst)
    assert controller.rate(86_401.0) == pytest.approx(0.10 / np.log10(100 * (100 / 20 - 1)))


@pytest.mark.parametrize(
    ("p99", "rate"),
    [(120.0, 50.0), (230.0, 50.0), (250.0, 10.0), (90.0, 50.0), (80.0, 100.0)],
)
def test_the_latency_curve(p99, rate):
    """P99 against 120 ms: 1.92 and 0.75 are between, 2.08 is above 2.0, 0.67 below 0.7."""
    simulation = Simulation(curve="latency")
    assert set(simulation.run(60, 100)) == {50.0}
    assert simulation.run(10, 100, p99)[:-1] == [50.0] * 9
    # A window and another: both hold nothing else.
    assert simulation.run(11, 100, p99)[-1] == rate


def test_the_latency_curve_comes_back():
    """After two windows at the old level."""
    simulation = Simulation(curve="latency")
    simulation.run(60, 100)
    assert simulation.run(20, 100, 300.0)[-1] == 10.0
    assert simulation.run(21, 100)[-1] == 50.0


def test_a_fixed_rate_is_one():
    """Whatever happens."""
    simulation = Simulation(curve="fixed", baseline=0.25)
    assert set(simulation.run(60, 100) + simulation.run(60, 900, 500.0)) == {25.0}


@pytest.mark.parametrize(
    ("config", "bounds"),
    [
        ({}, (0.01, 0.10)),
        ({"baseline": 0.5}, (0.01, 0.5)),
        ({"curve": "latency"}, (0.10, 1.0)),
        ({"curve": "fixed", "baseline": 0.2}, (0.2, 0.2)),
    ],
)
def test_between_which_rates_it_can_move(config, bounds):
    """What is below the lowest is kept at every rate, what is above the highest at none."""
    assert RateController(RateConfig(**config), 0.0).bounds == bounds


def test_a_reload_keeps_the_traffic():
    """The same configuration goes on where it was; another window begins anew."""
    simulation = Simulation()
    simulation.run(60, 100)
    simulation.run(10, 150)
    same, other = RateController(RateConfig(), 5000.0), RateController(RateConfig(window=20), 1070.0)
    same.adopt(simulation.controller)
    other.adopt(simulation.controller)
    assert same.rate(1070.0) == pytest.approx(0.058859, abs=5e-6)
    assert other.rate(1070.0) == 0.05

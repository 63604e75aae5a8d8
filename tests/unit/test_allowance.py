"""So many a second, saved up to a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.allowance import Allowance


def test_it_is_full_at_first_and_fills_as_time_passes():
    """To its limit and no further, whatever the clock began at."""
    allowance = Allowance(2.0, 3)
    assert [allowance.take(1e6) for _ in range(4)] == [True, True, True, False]
    assert not allowance.take(1e6 + 0.25)
    assert allowance.take(1e6 + 0.5)
    assert [allowance.take(2e6) for _ in range(4)] == [True, True, True, False]


def test_asking_spends_nothing():
    """Only taking does."""
    allowance = Allowance(1.0, 1)
    assert all(allowance.ready(0.0) for _ in range(5))
    assert allowance.take(0.0)
    assert not allowance.ready(0.9)
    assert allowance.ready(1.0)


@given(
    st.floats(0.125, 100),
    st.floats(1, 100),
    st.lists(st.integers(0, 3), max_size=200),
)
def test_never_more_than_saved_and_gained(a_second, most, steps):
    """Over any stretch: what fits, and what came in meanwhile."""
    allowance, now, taken = Allowance(a_second, most), 0.0, 0
    for step in steps:
        now += step / 4
        taken += allowance.take(now)
        assert taken <= most + now * a_second + 1e-6

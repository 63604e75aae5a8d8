"""Waits, and what is believed of a destination."""

from __future__ import annotations

import pytest

from otel_bridge.backoff import LONGEST_ASKED, RetryPolicy
from otel_bridge.exporters.otlp.config import RetryConfig
from otel_bridge.exporters.otlp.retry import Health, Suspects


def policy(draw: float = 1.0, **config) -> RetryPolicy:
    return RetryPolicy(RetryConfig.model_validate(config), lambda: draw)


def test_the_upper_end_grows_from_5_to_30_seconds():
    waits = [policy().delay(failures) for failures in range(1, 8)]
    assert waits == [5.0, 7.5, 11.25, 16.875, 25.3125, 30.0, 30.0]


def test_full_jitter_reaches_down_to_zero():
    assert policy(0.0).delay(5) == 0.0
    assert policy(0.5).delay(6) == 15.0


def test_many_failures_do_not_overflow():
    assert policy(multiplier=10).delay(10**9) == 30.0


def test_what_the_destination_asks_for_is_a_floor_and_is_spread():
    assert policy(0.0).delay(1, 20.0) == 20.0
    assert policy(1.0).delay(1, 20.0) == 25.0


def test_nobody_is_shut_off_for_ever():
    assert policy(0.0).delay(1, 1e20) == LONGEST_ASKED


def test_down_means_one_try_at_a_time_after_its_wait():
    health = Health(policy())
    assert health.allowed(10, 0.0) == 10
    health.failed(health.era, 100.0, None)
    assert health.down
    assert health.allowed(10, 104.9) == 0
    assert health.allowed(10, 105.0) == 1
    health.succeeded()
    assert health.allowed(10, 105.0) == 10


def test_tries_that_fail_together_count_as_one_failure():
    health = Health(policy())
    era = health.era
    for _ in range(10):
        health.failed(era, 100.0, None)
    assert health.open_at == 105.0


def test_a_throttle_outlives_a_success_of_another_try():
    health = Health(policy(0.0))
    health.failed(health.era, 0.0, 40.0)
    health.succeeded()
    assert health.allowed(10, 39.0) == 0
    assert health.allowed(10, 40.0) == 10


@pytest.mark.parametrize("asked", [None, 3.0])
def test_a_late_failure_of_an_earlier_try_still_throttles(asked):
    health = Health(policy())
    era = health.era
    health.failed(era, 0.0, None)
    health.succeeded()
    health.failed(era, 1.0, asked)
    assert not health.down
    assert (health.open_at > 1.0) == (asked is not None)


def test_a_request_that_keeps_failing_rests_while_others_are_tried():
    suspects = Suspects(policy())
    assert [suspects.failed(1, 0.0) for _ in range(3)] == [False, False, False]
    assert suspects.resting(1.0) == {1}
    assert suspects.resting(100.0) == frozenset()
    assert suspects.known == {1}
    assert suspects.failed(1, 100.0), "known by now: it says nothing about the destination"
    suspects.delivered(1)
    assert not suspects.known


def test_when_all_fail_it_is_the_destination():
    suspects = Suspects(policy())
    for number in (1, 2, 3, 4):
        for _ in range(3):
            assert not suspects.failed(number, 0.0)
    assert not suspects.resting(0.0), "the oldest is tried first again"
    suspects.delivered(None)
    for _ in range(3):
        suspects.failed(1, 0.0)
    assert suspects.resting(0.0) == {1}

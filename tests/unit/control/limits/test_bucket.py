"""A bucket's arithmetic: never more than capacity + rate x time, whatever comes in whatever order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_bridge.control.limits.bucket import Bucket

CAPACITY = 100.0
RATE = 3.0
amounts = st.floats(0.01, CAPACITY)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0, 60)),
        st.tuples(st.just("back"), st.floats(0, 60)),
        st.tuples(st.just("take"), amounts),
        st.tuples(st.just("reserve"), amounts),
        st.tuples(st.just("settle"), st.integers(0, 30), st.floats(0, 1)),
        st.tuples(st.just("forget"), st.integers(0, 30)),
    ),
    max_size=60,
)


@dataclass
class Admitted:
    """One request that was let through: when, and what it costs as far as is known."""

    at: float
    cost: float
    number: int = 0


class Shop:
    """A bucket, and what it let through."""

    def __init__(self) -> None:
        self.now = 0.0
        self.bucket = Bucket(CAPACITY, 0.0)
        self.admitted: list[Admitted] = []
        self.open: list[Admitted] = []
        self.number = 0
        self.debt = 0.0

    def do(self, word, *values) -> None:
        """One step."""
        if word == "wait":
            self.now += values[0]
        self.bucket.refill(CAPACITY, RATE, self.now - values[0] if word == "back" else self.now)
        if word == "take" and self.bucket.holds(values[0], CAPACITY):
            self.bucket.take(values[0])
            self.admitted.append(Admitted(self.now, values[0]))
        elif word == "reserve" and self.bucket.holds(values[0], CAPACITY):
            self.number += 1
            self.bucket.reserve(self.number, values[0])
            self.admitted.append(Admitted(self.now, values[0], self.number))
            self.open.append(self.admitted[-1])
        elif word in {"settle", "forget"} and self.open:
            found = self.open.pop(values[0] % len(self.open))
            if word == "forget":
                self.bucket.forget(found.number)
                return
            found.cost -= self.bucket.settle(found.number, found.cost, values[1] * found.cost, CAPACITY)

    def holds(self) -> None:
        """What is true after each step."""
        bucket = self.bucket
        assert bucket.level <= CAPACITY
        assert bucket.level >= -CAPACITY * 1e-6
        assert bucket.claimed == pytest.approx(sum(bucket.claims.values()), abs=1e-6)
        assert bucket.claimed <= CAPACITY - bucket.level + 1e-6
        assert set(bucket.claims) <= {one.number for one in self.open}


def check_every_stretch(admitted: list[Admitted]) -> None:
    """Of any stretch between two admissions: no more than capacity + rate x time."""
    for first in range(len(admitted)):
        total = 0.0
        for last in admitted[first:]:
            total += last.cost
            assert total <= CAPACITY + RATE * (last.at - admitted[first].at) + 1e-6


@settings(deadline=None)
@given(steps)
def test_no_stretch_of_time_admits_more_than_its_share(taken):
    """Reckoned by what requests finally cost; reservations end in any order, late, or never."""
    shop = Shop()
    stepped_back = any(word == "back" and values[0] for word, *values in taken)
    for word, *values in taken:
        shop.do(word, *values)
        shop.holds()
    if not stepped_back:
        check_every_stretch(shop.admitted)


@settings(deadline=None)
@given(steps)
def test_reservations_never_leak(taken):
    """When all have ended and time has passed, the bucket is full and keeps nothing of them."""
    shop = Shop()
    for word, *values in taken:
        shop.do(word, *values)
    while shop.open:
        shop.do("settle", 0, 0.5)
    assert shop.bucket.claims == {}
    assert shop.bucket.claimed == 0
    shop.do("wait", (CAPACITY - min(0.0, shop.bucket.level)) / RATE + 1)
    assert shop.bucket.level == CAPACITY
    assert shop.bucket.full(CAPACITY)


@settings(deadline=None)
@given(st.lists(st.tuples(amounts, st.floats(0, 3)), min_size=1, max_size=20), st.randoms())
def test_within_the_room_nothing_of_a_reservation_is_lost(requests, random):
    """While the bucket never fills, it ends as if each request had cost what it used from the start."""
    bucket = Bucket(CAPACITY, 0.0)
    kept = []
    for number, (amount, share) in enumerate(requests, 1):
        if not bucket.holds(amount, CAPACITY):
            continue
        bucket.reserve(number, amount)
        kept.append((number, amount, amount * share))
    random.shuffle(kept)
    for number, amount, used in kept:
        bucket.settle(number, amount, used, CAPACITY)
    assert bucket.level == pytest.approx(CAPACITY - sum(used for _, _, used in kept))


def test_what_has_run_over_does_not_come_back():
    """A bucket that was full again meanwhile gives nothing for an old reservation."""
    bucket = Bucket(CAPACITY, 0.0)
    bucket.reserve(1, 100)
    bucket.refill(CAPACITY, RATE, 100.0)
    bucket.reserve(2, 100)
    assert bucket.settle(1, 100, 10, CAPACITY) == 0
    assert bucket.level == 0
    assert bucket.settle(2, 100, 10, CAPACITY) == 90


def test_the_oldest_loses_its_claim_first():
    """And the younger keeps what fits."""
    bucket = Bucket(CAPACITY, 0.0)
    bucket.reserve(1, 50)
    bucket.reserve(2, 50)
    bucket.refill(CAPACITY, RATE, 20.0)  # 60 came in, so 40 may still come back
    assert dict(bucket.claims) == {2: 40}


def test_a_poller_faster_than_the_refill_does_not_starve():
    """Empty, one token a second, a request each 0.5 s for 20 s: 20 pass (cases.md rl-bucket b)."""
    bucket = Bucket(0.0, 0.0)
    passed = 0
    for number in range(1, 41):
        bucket.refill(1.0, 1.0, number * 0.5)
        if bucket.holds(1, 1.0):
            bucket.take(1)
            passed += 1
    assert passed == 20


def test_an_idle_bucket_pays_out_once():
    """Full for an hour, then two full-size requests at one moment (cases.md rl-bucket c)."""
    bucket = Bucket(CAPACITY, 0.0)
    bucket.refill(CAPACITY, RATE, 3600.0)
    assert bucket.holds(CAPACITY, CAPACITY)
    bucket.take(CAPACITY)
    bucket.refill(CAPACITY, RATE, 3600.0)
    assert not bucket.holds(CAPACITY, CAPACITY)


def test_what_was_used_beyond_the_reservation_is_a_debt():
    """It is paid before anything passes again."""
    bucket = Bucket(CAPACITY, 0.0)
    bucket.reserve(1, 10)
    assert bucket.settle(1, 10, 300, CAPACITY) == -290
    assert bucket.level == -200
    bucket.refill(CAPACITY, RATE, 60.0)
    assert not bucket.holds(1, CAPACITY)
    bucket.refill(CAPACITY, RATE, 70.0)
    assert bucket.holds(1, CAPACITY)


def test_a_clock_that_goes_back_gives_nothing_and_holds_nothing_up():
    """An hour back: nothing now, the usual refill from there on."""
    bucket = Bucket(CAPACITY, 7200.0)
    bucket.take(CAPACITY)
    bucket.refill(CAPACITY, RATE, 3600.0)
    assert bucket.level == 0
    bucket.refill(CAPACITY, RATE, 3610.0)
    assert bucket.level == 30

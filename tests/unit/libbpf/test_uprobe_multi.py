"""Detaching many uprobes at once."""

from __future__ import annotations

import threading

import pytest

from otel_bridge.libbpf.uprobe_multi import MultiLink, close_all

TOGETHER = 5
PATIENCE = 30.0


class Meeting(MultiLink):
    """A link whose closing ends once as many others close as the barrier wants."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__(-1)
        self._barrier = barrier

    def close(self) -> None:
        """Wait for the others."""
        self._barrier.wait(PATIENCE)


class Lone:
    """A link that must not be closed while another one is."""

    def __init__(self, closing: threading.Lock, closed: list[int], number: int) -> None:
        self._closing = closing
        self._closed = closed
        self._number = number

    def close(self) -> None:
        """Note it."""
        assert self._closing.acquire(blocking=False)
        self._closed.append(self._number)
        self._closing.release()


def test_links_of_the_kind_that_can_are_closed_side_by_side():
    """One that waits for the others would wait for ever if it went first."""
    barrier = threading.Barrier(TOGETHER)
    close_all(Meeting(barrier) for _ in range(TOGETHER))
    assert barrier.n_waiting == 0
    assert not barrier.broken


def test_others_are_closed_one_after_another():
    """Those of static tracepoints change what they share."""
    closing, closed = threading.Lock(), []
    close_all(Lone(closing, closed, number) for number in range(TOGETHER))
    assert closed == list(range(TOGETHER))


def test_what_a_link_raises_is_not_swallowed():
    """A link that cannot be closed is a defect to hear of."""
    broken = threading.Barrier(2)
    broken.abort()
    with pytest.raises(threading.BrokenBarrierError):
        close_all([Meeting(broken), MultiLink(-1)])

"""Calls of the driver that do not return: noticed, so that one GPU does not stop the others.

A thread cannot be taken out of such a call. It is left there; whoever is told of it goes on in another one.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.contracts import Clock
    from otel_bridge.gpu.fleet import Member


class Turn:
    """A thread's turn at asking the driver, one GPU at a time.

    Attributes:
        over: another thread has taken its place.
    """

    def __init__(self) -> None:
        self._asked: tuple[Member, float] | None = None
        self._lock = threading.Lock()
        self.over = False

    def begin(self, member: Member, now: float) -> None:
        """Note what is asked from now (monotonic seconds) on."""
        self._asked = member, now

    def end(self) -> bool:
        """Note that the answer is here; False when it is too late, and nobody waits for it."""
        with self._lock:
            self._asked = None
            return not self.over

    def give_up(self, before: float) -> Member | None:
        """The GPU that was asked before a moment and has not answered: the turn is over then."""
        with self._lock:
            if self._asked is None or self._asked[1] > before:
                return None
            self.over = True
            return self._asked[0]


class HangWatch:
    """A thread that looks whether the one whose turn it is still waits for the driver.

    Args:
        patience: seconds that a GPU may take.
        clock: for that time.
        tell: told of a GPU that took longer; its thread's turn is over by then.
    """

    def __init__(self, patience: float, clock: Clock, tell: Callable[[Member], None]) -> None:
        self._patience = patience
        self._clock = clock
        self._tell = tell
        self._turn: Turn | None = None
        self._stuck: set[Turn] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    @property
    def stuck(self) -> bool:
        """Whether a call that somebody gave up waiting for has not returned: the library is in use then."""
        return bool(self._stuck)

    def follow(self, turn: Turn) -> None:
        """Watch this turn from now on."""
        self._turn = turn

    def returned(self, turn: Turn) -> None:
        """A thread is in no call any more, and makes none."""
        self._stuck.discard(turn)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """See whether the turn takes too long, and tell of it."""
        turn = self._turn
        if turn is None or turn.over:
            return
        member = turn.give_up(self._clock.monotonic() - self._patience)
        if member is not None:
            self._stuck.add(turn)
            self._tell(member)

    def _run(self) -> None:
        while not self._stopping.wait(self._patience / 2):
            self.look()

"""A time-out for many short waits: one timer looks after all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Deadlines:
    """Waits that may all take equally long, for the tasks of one event loop.

    `asyncio.timeout` makes a timer for each wait, of which nearly all are cancelled again. Here waits stand
    in the order in which they began, and one timer runs to the end of the oldest.

    Args:
        seconds: that each may take.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[Wait, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def within(self) -> Wait:
        """For a `with` around what may take so long; raises TimeoutError where it takes longer."""
        return Wait(self)

    def begin(self, wait: Wait) -> None:
        """Look after a wait."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._seconds
        self._due[wait] = due
        if self._timer is None:
            self._timer = loop.call_at(due, self._look, loop)

    def end(self, wait: Wait) -> None:
        """It is over."""
        self._due.pop(wait, None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while self._due:
            wait, due = next(iter(self._due.items()))
            if due > now:
                self._timer = loop.call_at(due, self._look, loop)
                return
            del self._due[wait]
            wait.expire()


class Wait:
    """One wait of the running task; what cancels it for another reason is handed on."""

    __slots__ = ("_cancelling", "_deadlines", "_expired", "_task")

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._expired = False

    def expire(self) -> None:
        """It took too long."""
        self._expired = True
        self._task.cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can wait")
        self._task = task
        self._cancelling = task.cancelling()
        self._deadlines.begin(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self._deadlines.end(self)
        # As asyncio.timeout does: a task that somebody else cancels as well stays cancelled.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

"""Makers of control parts for tests: boards on a fake clock, with and without a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge.control.board import Board
from otel_bridge.control.breaker import Calls
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.decider import Decider
from otel_bridge.control.sources import Sources
from otel_bridge.control.store import StateStore
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock

if TYPE_CHECKING:
    from pathlib import Path

    from otel_bridge.breakers import Change

SECOND = 1_000_000_000
DAY = 86_400.0


class Recorder:
    """A gate and an action sink that keep what they are told."""

    name = "recorder"

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.error: OSError | None = None

    def apply(self, change: Change) -> None:
        """As a gate."""
        if self.error is not None:
            raise self.error
        self.changes.append(change)

    def submit(self, change: Change) -> None:
        """As an action sink."""
        self.changes.append(change)


class World:
    """One bridge's breakers, without any listener."""

    def __init__(
        self,
        clock: FakeClock | None = None,
        file: Path | None = None,
        boot: str = "boot",
        **config: Any,
    ) -> None:
        self.clock = clock or FakeClock()
        self.telemetry = Telemetry()
        self.config = ControlConfig.model_validate(
            {"enabled": True, "state": {"file": str(file) if file else None}} | config
        )
        self.store = StateStore(self.config.state, self.clock, self.telemetry, boot=lambda: boot)
        self.board = Board(self.config, self.telemetry, self.clock, self.store, "replica")
        self.sources = Sources(self.board, self.telemetry)
        self.decider = Decider(self.board, draw=lambda: 0.5)
        self.told = Recorder()
        self.board.actions = self.told
        self.board.load()

    async def pass_time(self, seconds: float) -> None:
        """Move the clock, with a tick at the end."""
        await self.clock.advance(seconds)
        self.sources.renew()
        self.board.advance()

    def calls(self, key: str, *seconds: float, error: bool = False, **fields: Any) -> None:
        """Calls of one target end now."""
        self.sources.take_calls(key, calls(self.clock, *seconds, error=error, **fields), event=1)

    def record(self, key: str):
        """A breaker's record."""
        breaker = self.board.find(key)
        assert breaker is not None
        return breaker.record

    def state(self, key: str) -> str:
        """A breaker's state."""
        return self.record(key).state.value

    def history(self, target: str | None = None):
        """The audit log, oldest first."""
        return list(reversed(self.store.history(target, 1000)))


def calls(
    clock: FakeClock,
    *seconds: float,
    error: bool = False,
    ignored: bool = False,
    traces: list[str] | None = None,
    wall: int | None = None,
) -> Calls:
    """Calls that end now, one for each duration; `wall` is what their service's clock shows, unix ns."""
    count = len(seconds)
    took = np.array(seconds, np.float64)
    ids = traces or [f"{number + 1:032x}" for number in range(count)]
    return Calls(
        took,
        np.full(count, error),
        np.full(count, ignored),
        ((clock.time_ns() if wall is None else wall) - (took * 1e9)).astype("<u8"),
        np.frombuffer(b"".join(bytes.fromhex(trace) for trace in ids), "V16"),
    )

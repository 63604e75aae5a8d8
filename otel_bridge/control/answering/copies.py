"""The breakers that refuse, copied from the bridge's process to the one that answers gateways."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from otel_bridge.breakers import State
from otel_bridge.control import codec, machine
from otel_bridge.control.answering.snapshot import TOO_LARGE
from otel_bridge.control.breaker import Breaker
from otel_bridge.control.decider import Decider
from otel_bridge.targets import levels

if TYPE_CHECKING:
    from otel_bridge.contracts import Clock
    from otel_bridge.control.answering.snapshot import Reader, Writer
    from otel_bridge.control.board import Board
    from otel_bridge.control.config import ControlConfig
    from otel_bridge.control.decision import Decision
    from otel_bridge.control.limits.claims import Claim


class Mirror:
    """In the bridge: shows what refuses (board.Mirror). Called under the board's lock."""

    def __init__(self, writer: Writer, board: Board) -> None:
        self._writer = writer
        self._board = board
        self._shown: dict[str, dict[str, Any]] = {}
        self._cut_off = False
        with board.lock:
            for breaker in board.refusing.values():
                self._shown[breaker.key] = codec.dump(breaker.record)
            self._write()
            board.mirror = self

    def show(self, breaker: Breaker) -> None:
        """A breaker's record is another now."""
        if breaker.traffic(breaker.record) is not State.CLOSED:
            self._shown[breaker.key] = codec.dump(breaker.record)
        elif self._shown.pop(breaker.key, None) is None:
            return
        self._write()

    def look(self) -> None:
        """See whether replicas can be reached; they tell nobody."""
        replicas = self._board.replicas
        if replicas is not None and replicas.cut_off is not self._cut_off:
            with self._board.lock:
                self._cut_off = replicas.cut_off
                self._write()

    def close(self) -> None:
        """Show nothing more; whoever looks asks the bridge."""
        with self._board.lock:
            self._board.mirror = None
            self._writer.write(TOO_LARGE)

    def _write(self) -> None:
        # Without its replicas the bridge decides as configured, and says so in each answer.
        self._writer.write({"ask": self._cut_off, "breakers": self._shown})


class _Bridge:
    """Who gives permits to probes: the bridge, which has to be asked."""

    cut_off = False


class _Copies:
    """As much of a board as a decider looks at."""

    def __init__(self, reader: Reader, config: ControlConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.lock = threading.RLock()
        self.replicas = _Bridge()
        self.refusing: dict[str, Breaker] = {}
        self.ask = True
        self._reader = reader

    def refresh(self) -> None:
        """Take over what the bridge shows."""
        content = self._reader.read()
        if content is None:
            return
        self.ask = content["ask"]
        refusing = {}
        for key, data in content["breakers"].items():
            breaker = self.refusing.get(key) or Breaker(key, self.config.policy(key), 0.0)
            breaker.record = codec.load(data)
            refusing[key] = breaker
        self.refusing = refusing

    def in_the_way(self, key: str) -> list[Breaker]:
        """Breakers that govern a key and do not simply let its requests through, as of now."""
        now = self.clock.monotonic()
        found = [breaker for level in levels(key) if (breaker := self.refusing.get(level)) is not None]
        for breaker in found:
            breaker.record = machine.advance(breaker.record, breaker.rules, now)
        return [breaker for breaker in found if breaker.traffic(breaker.record) is not State.CLOSED]


class CopyDecider(Decider):
    """In the process that answers: decides what can be told from the copies alone."""

    def __init__(self, reader: Reader, config: ControlConfig, clock: Clock) -> None:
        self._copies = _Copies(reader, config, clock)
        super().__init__(self._copies)  # type: ignore[arg-type]

    def decide_here(self, key: str, trace: str, claim: Claim | None = None) -> Decision | None:
        """None: the bridge must be asked, for a permit or about a limit."""
        copies = self._copies
        copies.refresh()
        if copies.ask:
            return None
        decision = super().decide_here(key, trace)
        # What a breaker refuses takes nothing from limits, so they need not be asked.
        return decision if claim is None or decision is None or not decision.allow else None

"""How much the bridge tells while something is wrong: more traces, more of its own log lines.

Control asks for it, sampling and logging follow; neither knows of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_bridge.telemetry import LEVELS, set_log_level


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants while something is wrong.

    Attributes:
        sampling_rate: at least this share of traces; 0: no more than usual.
        log_level: log lines of the bridge from this level on; None: no more than usual.
    """

    sampling_rate: float = 0.0
    log_level: str | None = None


class Verbosity:
    """The most that anybody wants now; used from the event loop's thread.

    Attributes:
        highest_rate: the highest rate that anybody may ever want.
        sampling_rate: at least this share of traces is to be kept now.
    """

    def __init__(self, log_level: str, highest_rate: float = 0.0) -> None:
        self.highest_rate = highest_rate
        self.sampling_rate = 0.0
        self._usual = self._level = log_level
        self._wishes: dict[tuple[str, str], Wish] = {}

    def want(self, who: str, why: str, wish: Wish) -> None:
        """Tell more, until the same `who` and `why` is released."""
        self._wishes[who, why] = wish
        self._follow()

    def release(self, who: str, why: str) -> None:
        """Tell no more than usual for this."""
        if self._wishes.pop((who, why), None) is not None:
            self._follow()

    def _follow(self) -> None:
        wishes = self._wishes.values()
        self.sampling_rate = max((wish.sampling_rate for wish in wishes), default=0.0)
        levels = [self._usual, *(wish.log_level for wish in wishes if wish.log_level is not None)]
        level = min(levels, key=LEVELS.index)
        if level != self._level:
            self._level = level
            set_log_level(level)

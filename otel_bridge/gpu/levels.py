"""Levels of memory pressure: pure, one state for one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.gpu.config import LevelsConfig

SILENCE_NS = 5_000_000_000


class Level(IntEnum):
    """How full device memory is."""

    LOW = 0
    MEDIUM = 1
    CRITICAL = 2


def level_of(ratio: float, before: Level, config: LevelsConfig) -> Level:
    """The level after one more reading.

    Medium begins at its threshold, critical above its own; both are left only below their threshold less the
    hysteresis, so that a reading that trembles around one changes nothing.

    Args:
        ratio: used share of device memory.
        before: the level until now.
        config: thresholds.
    """
    if ratio > config.critical or (before is Level.CRITICAL and ratio >= config.critical - config.hysteresis):
        return Level.CRITICAL
    if ratio >= config.medium or (before is not Level.LOW and ratio >= config.medium - config.hysteresis):
        return Level.MEDIUM
    return Level.LOW


@dataclass(slots=True)
class Pressure:
    """The pressure of one GPU.

    Attributes:
        config: thresholds.
        patience: nanoseconds between two readings that are a silence.
        level: now; None: nothing was read.
        saturated: whether memory has been nearly full for long enough.
    """

    config: LevelsConfig
    patience: int = SILENCE_NS
    level: Level | None = None
    saturated: bool = False
    _full_since: int | None = None
    _last: int = 0

    def read(self, ratio: float, moment: int) -> None:
        """Take one reading.

        Being nearly full is counted from reading to reading: after a silence it begins anew, but what had
        been nearly full for long enough stays so until a reading says otherwise.

        Args:
            ratio: used share of device memory.
            moment: of the reading, unix nanoseconds.
        """
        self.level = level_of(ratio, self.level or Level.LOW, self.config)
        if ratio <= self.config.saturated:
            self._full_since, self.saturated = None, False
        else:
            if self._full_since is None or moment - self._last > self.patience:
                self._full_since = moment
            self.saturated |= moment - self._full_since >= self.config.saturated_for * 1e9
        self._last = moment

    def silence(self) -> None:
        """The GPU answers no more: it has no level, and no duration goes on."""
        self.level, self._full_since = None, None

"""A rule's condition, compiled: its truth in one group at a time, and when that may change by itself.

Truth has three values; None is "not known".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from otel_bridge.rules.streaming.alerts import Alert
from otel_bridge.rules.streaming.levels import FALSE, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_bridge.rules.streaming.levels import Level
    from otel_bridge.rules.streaming.occurrences import Occurrences
    from otel_bridge.rules.streaming.series import Readings, SeriesTest
    from otel_bridge.rules.streaming.views import Key

Truth = bool | None


@dataclass(slots=True)
class Group:
    """What a rule knows of one group.

    Attributes:
        key: the values of `by`.
        first: when the group was seen first, unix nanoseconds.
        occurrences: by the place of the condition among the rule's conditions.
        readings: likewise.
        rows: of levels, likewise.
        levels: their truth as of the last look, and where their window ended then.
        evidence: trace ids of recent hits with their time and how bad they were.
        alert: whether it fires.
        due: when to look again though nothing came; None: never.
        incomplete: whether its alert has said that events of its window were lost.
    """

    key: Key
    first: int
    occurrences: dict[int, Occurrences] = field(default_factory=dict)
    readings: dict[int, Readings] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    levels: dict[int, tuple[int, int]] = field(default_factory=dict)
    evidence: list[tuple[int, float, bytes]] = field(default_factory=list)
    alert: Alert = field(default_factory=Alert)
    due: int | None = None
    incomplete: bool = False


class Losses(Protocol):
    """What was lost, and when."""

    def between(self, probe: str, first: int, last: int) -> int:
        """How many events of a probe were lost in a time, both ends included."""

    def last(self, probe: str, until: int) -> int | None:
        """When some were lost last, not after a time."""


class Condition(Protocol):
    """A compiled condition."""

    def truth(self, group: Group, time: int) -> Truth:
        """Whether it holds in a group at a time, by what is known now."""

    def changes(self, group: Group, time: int) -> int | None:
        """When after a time its truth may change though nothing comes; None: never."""

    def lossy(self, time: int) -> bool:
        """Whether events were lost that it would have counted at a time."""


@dataclass(frozen=True, slots=True)
class Occurred:
    """A plain, counted or consecutive condition over a window (nanoseconds)."""

    place: int
    window: int
    probe: str
    losses: Losses

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        start = group.occurrences[self.place].start_at(time)
        return start is not None and start >= time - self.window

    def changes(self, group: Group, time: int) -> int | None:
        """See `Condition`."""
        start = group.occurrences[self.place].start_at(time)
        if start is None or start < time - self.window:
            return None
        return start + self.window + 1

    def lossy(self, time: int) -> bool:
        """See `Condition`."""
        return bool(self.probe) and self.losses.between(self.probe, time - self.window, time) > 0


@dataclass(frozen=True, slots=True)
class Absent:
    """No hit for a window, and for the time that late ones may take to come."""

    place: int
    window: int
    lateness: int
    probe: str
    losses: Losses
    since: Callable[[], int]

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        edge = time - self.window - self.lateness
        last = group.occurrences[self.place].last_hit(time)
        if last is not None and last >= edge:
            return False
        if max(group.first, self.since()) > edge or self.lossy(time):
            return None
        return True

    def changes(self, group: Group, time: int) -> int | None:
        """See `Condition`."""
        last = group.occurrences[self.place].last_hit(time)
        lost = self.losses.last(self.probe, time)
        quiet = [found + 1 for found in (last, lost) if found is not None]
        at = max(group.first, self.since(), *quiet) + self.window + self.lateness
        return at if at > time else None

    def lossy(self, time: int) -> bool:
        """See `Condition`."""
        first = time - self.window - self.lateness
        return bool(self.probe) and self.losses.between(self.probe, first, time) > 0


@dataclass(frozen=True, slots=True)
class AtLevel:
    """A share, rate, mean, quantile or change: as of the last look, whatever time is asked for."""

    place: int
    level: Level
    probe: str
    losses: Losses
    since: Callable[[], int]

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        found, _ = group.levels.get(self.place, (UNKNOWN, 0))
        if found == UNKNOWN:
            return None
        if self.level.needs_all and max(group.first, self.since()) > time - self.level.covers:
            return None
        return found != FALSE

    def changes(self, group: Group, time: int) -> int | None:
        """See `Condition`."""
        row = group.rows.get(self.place)
        if row is None or self.level.idle(row):
            return None
        return (time // self.level.step + 1) * self.level.step

    def lossy(self, time: int) -> bool:
        """See `Condition`."""
        return bool(self.probe) and self.losses.between(self.probe, time - self.level.covers, time) > 0


@dataclass(frozen=True, slots=True)
class OfSeries:
    """A condition on a metric."""

    place: int
    test: SeriesTest

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        return self.test.holds(group.readings[self.place], time)

    def changes(self, group: Group, time: int) -> int | None:
        """See `Condition`."""
        return group.readings[self.place].next_change(time, self.test.edges)

    def lossy(self, time: int) -> bool:
        """See `Condition`."""
        del time
        return False


@dataclass(frozen=True, slots=True)
class Fires:
    """Another rule fires, for the same group or for none in particular."""

    fires: Callable[[Key], bool]

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        del time
        return self.fires(group.key)

    def changes(self, group: Group, time: int) -> int | None:
        """See `Condition`."""
        del group, time
        return None

    def lossy(self, time: int) -> bool:
        """See `Condition`."""
        del time
        return False


class _Several:
    def __init__(self, conditions: Sequence[Condition]) -> None:
        self._conditions = tuple(conditions)

    def changes(self, group: Group, time: int) -> int | None:
        """See `Condition`."""
        found = [at for item in self._conditions if (at := item.changes(group, time)) is not None]
        return min(found, default=None)

    def lossy(self, time: int) -> bool:
        """See `Condition`."""
        return any(item.lossy(time) for item in self._conditions)


class All(_Several):
    """All hold."""

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        out: Truth = True
        for item in self._conditions:
            found = item.truth(group, time)
            if found is False:
                return False
            out = out if found else None
        return out


class Any(_Several):
    """One holds."""

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        out: Truth = False
        for item in self._conditions:
            found = item.truth(group, time)
            if found:
                return True
            out = None if found is None else out
        return out


class Not(_Several):
    """One does not hold; while events were lost that it would count, that is not known."""

    def __init__(self, condition: Condition) -> None:
        super().__init__((condition,))

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        (item,) = self._conditions
        found = item.truth(group, time)
        if found is None or (not found and item.lossy(time)):
            return None
        return not found


class InOrder(_Several):
    """Steps completed one after the other within a window (nanoseconds)."""

    def __init__(self, steps: Sequence[Occurred], window: int) -> None:
        super().__init__(steps)
        self._places = tuple(step.place for step in steps)
        self._window = window

    def truth(self, group: Group, time: int) -> Truth:
        """See `Condition`."""
        return self._start(group, time) is not None

    def changes(self, group: Group, time: int) -> int | None:
        """See `Condition`."""
        start = self._start(group, time)
        return None if start is None else start + self._window + 1

    def _start(self, group: Group, time: int) -> int | None:
        """Where the latest chain of completions begins, if within the window.

        Backwards, the latest completion of each step is the best: it leaves the most room to those before.
        """
        bound = time
        for place in reversed(self._places):
            start = group.occurrences[place].start_at(bound)
            if start is None or start < time - self._window:
                return None
            bound = start - 1
        return bound + 1

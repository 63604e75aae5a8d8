"""What a rule means, computed the slow way: every item is kept and the definition is evaluated as it reads.

Nothing here is shared with the engine: no window is slid, no completion is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, product

STEPS = 60


@dataclass(frozen=True)
class Item:
    """One item: what it is, when it happened (nanoseconds), whether it is a hit of conditions on its kind."""

    kind: str
    time: int
    hit: bool


@dataclass(frozen=True)
class Count:
    kind: str
    needed: int
    window: int
    consecutive: bool = False

    def completions(self, items: list[Item]) -> list[tuple[int, int]]:
        hits = sorted(item.time for item in items if item.kind == self.kind and item.hit)
        misses = [item.time for item in items if item.kind == self.kind and not item.hit]
        out = []
        for first in range(len(hits) - self.needed + 1):
            run = hits[first : first + self.needed]
            broken = self.consecutive and any(a <= miss <= b for a, b in pairwise(run) for miss in misses)
            if not broken:
                out.append((run[0], run[-1]))
        return out

    def truth(self, items, time, lateness):
        return any(time - self.window <= a and b <= time for a, b in self.completions(items))

    def edges(self, lateness):
        return {self.window + 1}


@dataclass(frozen=True)
class Absent:
    kind: str
    window: int

    def truth(self, items, time, lateness):
        edge = time - self.window - lateness
        if any(item.kind == self.kind and item.hit and edge <= item.time <= time for item in items):
            return False
        return None if edge < 0 else True

    def edges(self, lateness):
        return {self.window + lateness, self.window + lateness + 1}


@dataclass(frozen=True)
class Ratio:
    kind: str
    window: int
    above: float
    at_least: int

    def truth(self, items, time, lateness):
        step = self.window // STEPS
        head = time // step
        seen = [i for i in items if i.kind == self.kind and head - STEPS < i.time // step <= head]
        if len(seen) < self.at_least:
            return None
        return sum(item.hit for item in seen) / len(seen) > self.above

    def edges(self, lateness):
        return set()


@dataclass(frozen=True)
class Sequence:
    steps: tuple[Count, ...]
    window: int

    def truth(self, items, time, lateness):
        chains = product(*(step.completions(items) for step in self.steps))
        return any(
            time - self.window <= chain[0][0]
            and chain[-1][1] <= time
            and all(a[1] < b[0] for a, b in pairwise(chain))
            for chain in chains
        )

    def edges(self, lateness):
        return {self.window + 1}


@dataclass(frozen=True)
class All:
    parts: tuple

    def truth(self, items, time, lateness):
        found = [part.truth(items, time, lateness) for part in self.parts]
        return False if False in found else None if None in found else True

    def edges(self, lateness):
        return set().union(*(part.edges(lateness) for part in self.parts))


@dataclass(frozen=True)
class Any(All):
    def truth(self, items, time, lateness):
        found = [part.truth(items, time, lateness) for part in self.parts]
        return True if True in found else None if None in found else False


@dataclass(frozen=True)
class Not(All):
    def truth(self, items, time, lateness):
        found = self.parts[0].truth(items, time, lateness)
        return None if found is None else not found


def ends_of(condition, items: list[Item]) -> list[int]:
    """When the occurrences below a condition were completed: only then can it come to hold."""
    if isinstance(condition, Count):
        return [end for _, end in condition.completions(items)]
    below = (*getattr(condition, "parts", ()), *getattr(condition, "steps", ()))
    return [end for part in below for end in ends_of(part, items)]


def longest(condition) -> int:
    """The longest window below a condition."""
    below = (*getattr(condition, "parts", ()), *getattr(condition, "steps", ()))
    return max([getattr(condition, "window", 0), *map(longest, below)])


@dataclass
class Reference:
    """One rule in one group, fed like the engine; `changes` is what the engine should say."""

    condition: object
    before: int = 0
    after: int = 0
    lateness: int = 0
    grid: int = 0
    drifts: bool = False
    kinds: frozenset[str] = frozenset()
    items: list[Item] = field(default_factory=list)
    changes: list[tuple[bool, int]] = field(default_factory=list)
    newest: int = 0
    active: bool = False
    true_since: int | None = None
    last_true: int = -1
    went_on: bool = False

    def interesting(self, first: int, last: int) -> list[int]:
        """Every time in [first, last] at which anything may change."""
        found = {item.time for item in self.items}
        edges = {edge - step for edge in self.condition.edges(self.lateness) for step in (0, 1)}
        found |= {time + edge for time in (*found, 0) for edge in edges}
        if self.grid:
            found |= set(range(first // self.grid * self.grid, last + 1, self.grid))
        if self.true_since is not None:
            found.add(self.true_since + self.before)
        elif self.active:
            found.add(self.last_true + self.after)
        return sorted(time for time in found if first <= time <= last)

    def pass_to(self, now: int) -> None:
        """Time passes, nothing comes; without anything under way there is nothing to look at."""
        while self.drifts or self.active or self.true_since is not None:
            times = self.interesting(self.newest + 1, now)
            if not times:
                return
            self.look(times[0])

    def take(self, item: Item) -> None:
        if item.kind not in self.kinds:
            return
        late = item.time < self.newest
        if not late:
            self.pass_to(item.time - 1)
        self.items.append(item)
        if not late and (self.grid or (item.hit and self.drifts)):
            self.look(item.time)
        if not late and item.hit and not self.drifts:
            last = item.time + longest(self.condition)
            for end in sorted(
                {end for end in ends_of(self.condition, self.items) if item.time <= end <= last}
            ):
                self.pass_to(end - 1)
                self.look(end)
        if late:
            # What is no hit only takes away: nothing that was decided before is decided again for it.
            for time in self.interesting(item.time, self.newest - 1) if item.hit else ():
                self.look(time)
            self.look(self.newest)

    def take_together(self, items: list[Item]) -> None:
        """Items of one array: what is no hit is known before any hit is looked at."""
        misses = [item for item in items if item.kind in self.kinds and not item.hit]
        self.items += misses
        if any(item.time <= self.newest for item in misses):
            self.look(self.newest)
        for item in items:
            if item.hit:
                self.take(item)

    def look(self, time: int) -> None:
        late = time < self.newest
        self.newest = max(self.newest, time)
        truth = self.condition.truth(self.items, time, self.lateness)
        if late:
            if truth and not self.before:
                self.last_true = max(self.last_true, time)
                self.begin(time)
            return
        if truth:
            self.true_since = time if self.true_since is None else self.true_since
            self.last_true = time
            self.went_on = True
            if time - self.true_since >= self.before:
                self.begin(time)
            return
        if self.went_on:
            self.last_true = max(self.last_true, time - 1)
        self.true_since = None
        self.went_on = truth is None and self.active
        if truth is None:
            self.last_true = time if self.active else self.last_true
        elif self.active and time - self.last_true >= self.after:
            self.active = False
            self.changes.append((False, time))

    def begin(self, time: int) -> None:
        if not self.active:
            self.active = True
            self.changes.append((True, time))

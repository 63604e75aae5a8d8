"""One rule at work: its conditions compiled to masks over columns, its groups, its alerts."""

from __future__ import annotations

from collections import OrderedDict
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_bridge.columns import any_of
from otel_bridge.rules.language import (
    AbsentCondition,
    AllCondition,
    AnyCondition,
    EventCondition,
    MetricCondition,
    NotCondition,
    RuleCondition,
    SequenceCondition,
    SpanCondition,
    aggregate,
    children,
)
from otel_bridge.rules.streaming import tree
from otel_bridge.rules.streaming.alerts import Holding
from otel_bridge.rules.streaming.levels import Level, quantile_test
from otel_bridge.rules.streaming.masks import compile_tests
from otel_bridge.rules.streaming.occurrences import Occurrences
from otel_bridge.rules.streaming.series import Readings, SeriesTest, fits
from otel_bridge.rules.terms import OPERATORS, in_unit
from otel_bridge.rules.vocabulary import DURATION, VALUE, probe_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from otel_bridge.readings import Reading
    from otel_bridge.rules.language import Node, Rule
    from otel_bridge.rules.load import LoadedRule
    from otel_bridge.rules.streaming.tree import Condition, Group, Losses
    from otel_bridge.rules.streaming.views import EventView, Key, SpanView
    from otel_bridge.rules.vocabulary import Vocabulary

    View = SpanView | EventView

MOST_CHANGES = 64
"""Changes of a condition by itself that a late item has looked at."""
FIRST_READINGS = 10_000_000_000
"""Nanoseconds from the start in which every counter is read once; one that comes later began at 0."""


class ItemLeaf:
    """A condition over spans or events, compiled.

    Attributes:
        place: its number among the rule's conditions.
        subject: the kind of span, or of event.
        level: what it computes over its window; None where it is about occurrences.
        needed: of an occurrence, how many hits complete it.
        key: what is looked at: conditions of several rules may have the same.
        number: of the key, given by the engine; masks are made once a batch for each.
    """

    def __init__(
        self, place: int, leaf: SpanCondition | EventCondition, window: int, words: Vocabulary
    ) -> None:
        self.place = place
        self.of_spans = isinstance(leaf, SpanCondition)
        self.subject = leaf.span if isinstance(leaf, SpanCondition) else leaf.event
        self.probe = "" if isinstance(leaf, SpanCondition) else probe_of(leaf.event)
        computes, settings = aggregate(leaf)
        self.consecutive = computes == "consecutive"
        self.needed = settings if computes in ("count", "consecutive") else 1
        names = {*leaf.where, *leaf.is_}
        self._field: str | None = getattr(settings, "of", None) if settings is not None else None
        fields = {name: words.field(leaf, name) for name in names}
        known = {name: field for name, field in fields.items() if field is not None}
        self._where = compile_tests(leaf.where, known)
        self._is = compile_tests(leaf.is_, known)
        units = tuple(sorted((name, field.unit) for name, field in known.items()))
        self.key = (self.of_spans, self.subject, tuple(leaf.where.items()), tuple(leaf.is_.items()), units)
        self.number = -1
        self.level: Level | None = None
        self._quantile: tuple[Any, float] | None = None
        self._shares = computes == "ratio"
        if computes not in ("", "count", "consecutive"):
            of = words.field(leaf, self._field) if self._field is not None else None
            unit = of.unit if of is not None else "{hit}"
            self.level = Level(computes, settings, window, unit)
            if computes == "quantile":
                test = quantile_test(settings.is_)
                self._quantile = (OPERATORS[test], in_unit(settings.is_.quantity, unit))

    @property
    def wanted(self) -> tuple[str, ...]:
        """Fields that it reads."""
        _, _, where, hit, _ = self.key
        names = [name for name, _ in (*where, *hit)]
        return (*names, self._field) if self._field is not None else tuple(names)

    def masks(self, view: View) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which items count, and which of those are hits."""
        found = view.pairs.get(self.number)
        if found is None:
            counts = view.of_kind(self.subject) & view.usable
            where = self._where(view) if any_of(counts) else None
            counts = counts if where is None else counts & where
            passed = self._is(view) if any_of(counts) else None
            found = view.pairs[self.number] = (counts, counts if passed is None else counts & passed)
        return found

    def amounts(self, view: View) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float64] | None]:
        """For a level: which items count, which of them are hits, and the field that is added up."""
        counts, hits = self.masks(view)
        if not self._shares:
            counts = hits
        if self._field is None:
            return counts, hits, None
        values = view.numbers(self._field)
        counts = counts & ~np.isnan(values)
        if self._quantile is not None:
            compare, threshold = self._quantile
            return counts, counts & compare(values, threshold), None
        return counts, counts, values


class MetricLeaf:
    """A condition on a metric, compiled."""

    def __init__(self, place: int, leaf: MetricCondition, window: int, words: Vocabulary) -> None:
        self.place = place
        self._where = leaf.where
        computes, settings = aggregate(leaf)
        unit = words.metrics[leaf.metric].unit
        self.test = SeriesTest(leaf, computes, settings, unit, window)

    def takes(self, reading: Reading) -> bool:
        """Whether the reading counts."""
        return all(
            fits(reading.labels.get(name, ""), test) for name, test in self._where.items() if name != VALUE
        )


class Runtime:
    """A rule at work.

    Args:
        loaded: the rule.
        losses: what was lost.
        lateness: how late an item may come, nanoseconds.
        since: from when on everything was watched, unix nanoseconds.
        fires: whether another rule fires for a group.
        on_evicted: told of each group that is forgotten.
    """

    def __init__(
        self,
        loaded: LoadedRule,
        *,
        losses: Losses,
        lateness: int,
        since: Callable[[], int],
        fires: Callable[[str, Key], bool],
        on_evicted: Callable[[Runtime, Group], None],
    ) -> None:
        self.loaded = loaded
        self.rule: Rule = loaded.rule
        self.holding = Holding.of(self.rule)
        self.items: list[ItemLeaf] = []
        self.metrics: list[MetricLeaf] = []
        self.refers_to: set[str] = set()
        self._losses = losses
        self._lateness = lateness
        self._since = since
        self._fires = fires
        self._on_evicted = on_evicted
        self._now = 0
        self.longest = 0
        self.drifts = False
        self.condition = self._compile(self.rule.when, None)  # type: ignore[arg-type]
        self.horizon = self.longest + lateness
        self.groups: OrderedDict[Key, Group] = OrderedDict()
        self.by = {
            source: tuple(key.key(source) for key in self.rule.by) for source in ("span", "event", "metric")
        }

    @property
    def probes(self) -> set[str]:
        """Whose losses concern the rule."""
        return {leaf.probe for leaf in self.items if leaf.probe}

    # Compiling

    def _compile(self, node: Node, around: float | None) -> Condition:
        within: float | None = getattr(node, "within", None) or around
        window = round((within or 0.0) * 1e9)
        self.longest = max(self.longest, window)
        if isinstance(node, SpanCondition | EventCondition):
            return self._compile_items(node, window)
        if isinstance(node, MetricCondition):
            return self._compile_metric(node, window)
        if isinstance(node, RuleCondition):
            self.refers_to.add(node.rule)
            return tree.Fires(lambda key, name=node.rule: self._fires(name, key))  # type: ignore[misc]
        if isinstance(node, AbsentCondition):
            return self._compile_absent(node, within)
        parts = [self._compile(child, within) for child in children(node)]
        if isinstance(node, SequenceCondition):
            return tree.InOrder([part for part in parts if isinstance(part, tree.Occurred)], window)
        if isinstance(node, NotCondition):
            self.drifts = True
            return tree.Not(parts[0])
        assert isinstance(node, AllCondition | AnyCondition)
        return tree.All(parts) if isinstance(node, AllCondition) else tree.Any(parts)

    def _compile_items(self, node: SpanCondition | EventCondition, window: int) -> Condition:
        leaf = ItemLeaf(self._place(), node, window, self.loaded.vocabulary)
        self.items.append(leaf)
        if leaf.level is None:
            return tree.Occurred(leaf.place, window, leaf.probe, self._losses)
        self.drifts = True
        self.longest = max(self.longest, leaf.level.covers)
        return tree.AtLevel(leaf.place, leaf.level, leaf.probe, self._losses, self._since)

    def _compile_metric(self, node: MetricCondition, window: int) -> Condition:
        computes, _ = aggregate(node)
        leaf = MetricLeaf(self._place(), node, window if computes else 0, self.loaded.vocabulary)
        self.metrics.append(leaf)
        self.longest = max(self.longest, leaf.test.horizon)
        self.drifts = True
        return tree.OfSeries(leaf.place, leaf.test)

    def _compile_absent(self, node: AbsentCondition, within: float | None) -> Condition:
        inner = node.absent
        assert isinstance(inner, SpanCondition | EventCondition)
        window = round((inner.within or within or 0.0) * 1e9)
        leaf = ItemLeaf(self._place(), inner, window, self.loaded.vocabulary)
        self.items.append(leaf)
        self.longest = max(self.longest, window + self._lateness)
        self.drifts = True
        return tree.Absent(leaf.place, window, self._lateness, leaf.probe, self._losses, self._since)

    def _place(self) -> int:
        return len(self.items) + len(self.metrics)

    # Groups

    def labels(self, group: Group) -> dict[str, str]:
        """The values of the rule's `by` in a group."""
        return dict(zip((key.label for key in self.rule.by), group.key, strict=True))

    def group(self, key: Key, time: int) -> Group:
        """The group of some values of `by`, made when it is new."""
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = self._new_group(key, time)
            if len(self.groups) > self.rule.max_groups:
                self._evict(found)
        else:
            self.groups.move_to_end(key)
        return found

    def _new_group(self, key: Key, time: int) -> Group:
        group = tree.Group(key, time)
        self._fill(group)
        return group

    def _fill(self, group: Group) -> None:
        for leaf in self.items:
            if leaf.level is not None:
                group.rows.setdefault(leaf.place, -1)
                if group.rows[leaf.place] < 0:
                    group.rows[leaf.place] = leaf.level.new_row()
            else:
                group.occurrences[leaf.place] = Occurrences(leaf.needed, consecutive=leaf.consecutive)
        for metric in self.metrics:
            group.readings[metric.place] = Readings()
        group.levels.clear()
        group.evidence.clear()

    def _evict(self, newcomer: Group) -> None:
        """Let the idlest group go, one that does not fire if there is one."""
        others = (group for group in self.groups.values() if not group.alert.active and group is not newcomer)
        victim = next(others, None) or next(iter(self.groups.values()))
        del self.groups[victim.key]
        victim.due = None
        self._on_evicted(self, victim)
        for leaf in self.items:
            if leaf.level is not None:
                leaf.level.free_row(victim.rows[leaf.place])

    def begin_anew(self, shift: int) -> None:
        """After the wall clock was set: windows are empty, alerts that fire go on."""
        for leaf in self.items:
            if leaf.level is not None:
                leaf.level.clear()
        for group in self.groups.values():
            self._fill(group)
            group.first += shift
            group.alert.shift(shift)

    def take_over(self, other: Runtime) -> bool:
        """Go on with the groups of the same rule from before a reload; False when it is another rule now."""
        if self.rule != other.rule:
            return False
        self.groups = other.groups
        for mine, theirs in zip(self.items, other.items, strict=True):
            if mine.level is not None and theirs.level is not None:
                mine.level.take_over(theirs.level)
        return True

    # Taking in

    def take_items(self, view: View, source: str, see: Callable[[Group, int, bool], None]) -> None:
        """Take in a batch of spans or events.

        Args:
            view: the batch.
            source: "span" or "event".
            see: told to look at a group at a time; True: an item came at that time.
        """
        self._now = view.now
        hits: list[tuple[int, int, int]] = []
        touched: list[Group] = []
        broken: list[Group] = []
        for leaf in self.items:
            if leaf.of_spans != (source == "span"):
                continue
            if leaf.level is not None:
                touched += self._take_level(leaf, leaf.level, view, source)
            else:
                if leaf.consecutive:
                    broken += self._take_misses(leaf, view, source)
                hits += self._take_occurrences(leaf, view)
        if hits:
            self._look_at_hits(sorted(hits), view, source, see)
        for group in broken:
            see(group, group.alert.newest, False)
        for group in touched:
            see(group, max(view.newest, group.alert.newest), False)

    def _take_occurrences(self, leaf: ItemLeaf, view: View) -> list[tuple[int, int, int]]:
        _, hits = leaf.masks(view)
        rows = hits.nonzero()[0]
        return [
            (time, row, leaf.place)
            for time, row in zip(view.times[rows].tolist(), rows.tolist(), strict=True)
        ]

    def _take_misses(self, leaf: ItemLeaf, view: View, source: str) -> list[Group]:
        """Take in what is no hit; late ones may end what held, so their groups are looked at."""
        counts, hits = leaf.masks(view)
        rows = (counts & ~hits).nonzero()[0]
        if not len(rows):
            return []
        rows = rows[np.argsort(view.times[rows], kind="stable")]
        keys, inverse = view.groups(self.by[source])
        codes = inverse[rows]
        broken = []
        for code in np.unique(codes).tolist() if len(keys) > 1 else [0]:
            times = view.times[rows[codes == code]].tolist()
            group = self.group(keys[code], times[0])
            occurrences = group.occurrences[leaf.place]
            if occurrences.miss(times) and group.alert.newest >= 0:
                broken.append(group)
            occurrences.forget(self._now - self.horizon)
        return broken

    def _look_at_hits(
        self,
        hits: list[tuple[int, int, int]],
        view: View,
        source: str,
        see: Callable[[Group, int, bool], None],
    ) -> None:
        keys, inverse = view.groups(self.by[source])
        badness = view.numbers(DURATION)
        later: dict[Key, tuple[Group, int]] = {}
        for (time, row), same in groupby(hits, key=itemgetter(0, 1)):
            group = self.group(keys[inverse[row]], time)
            # All conditions have the item before any of them is looked at.
            completed, in_order = self._add_hit(group, time, [place for _, _, place in same])
            keep_evidence(group, time, float(badness[row]), view.trace_id(row))
            if self.drifts or time < group.alert.newest:
                see(group, time, True)
            elif completed and in_order and _goes_on(group, time):
                # It fires, and goes on to: one look at the last of them finds the same.
                later[group.key] = (group, time)
            elif completed:
                see(group, time, True)
        for group, time in later.values():
            see(group, max(time, group.alert.newest), True)

    def _add_hit(self, group: Group, time: int, places: list[int]) -> tuple[bool, bool]:
        """Give a hit to conditions; whether it completed one of them, and whether it came in order."""
        completed, in_order = False, True
        for place in places:
            occurrences = group.occurrences[place]
            completed = occurrences.hit(time) or completed
            in_order = in_order and occurrences.hits[-1] == time
            occurrences.forget(self._now - self.horizon)
        return completed, in_order

    def _take_level(self, leaf: ItemLeaf, level: Level, view: View, source: str) -> list[Group]:
        """Take in items; those groups are looked at whose truth changed, or whose alert is under way."""
        counts, hits, values = leaf.amounts(view)
        rows = counts.nonzero()[0]
        if not len(rows):
            return []
        level.move_to(view.newest)
        keys, inverse = view.groups(self.by[source])
        codes = np.unique(inverse[rows]) if len(keys) > 1 else np.zeros(1, np.intp)
        times = view.times[rows]
        groups = [self.group(keys[code], int(times.min())) for code in codes.tolist()]
        # With more groups in a batch than the rule may have, some are forgotten already.
        kept = [self.groups.get(group.key) is group for group in groups]
        if not all(kept):
            groups = [group for group, is_kept in zip(groups, kept, strict=True) if is_kept]
            codes = codes[kept]
            known = np.isin(inverse[rows], codes)
            rows, times = rows[known], times[known]
        row_of = np.zeros(len(keys), np.intp)
        row_of[codes] = [group.rows[leaf.place] for group in groups]
        level.add(row_of[inverse[rows]], times, hits[rows], None if values is None else values[rows])
        truths = level.truth(row_of[codes]).tolist()
        changed = []
        for code, group, truth in zip(codes.tolist(), groups, truths, strict=True):
            before, _ = group.levels.get(leaf.place, (None, 0))
            group.levels[leaf.place] = (truth, level.head)
            if truth != before or group.alert.active or group.alert.since is not None:
                self._keep_hits(group, view, rows[hits[rows] & (inverse[rows] == code)])
                changed.append(group)
            elif group.due is None:
                changed.append(group)
        return changed

    def _keep_hits(self, group: Group, view: View, rows: NDArray[np.intp]) -> None:
        badness = view.numbers(DURATION)
        for row in rows[-MAX_EVIDENCE:].tolist():
            keep_evidence(group, int(view.times[row]), float(badness[row]), view.trace_id(row))

    def take_reading(self, reading: Reading, now: int) -> list[Group] | None:
        """Take in a reading.

        Returns:
            The groups to look at; None when a group had too many series for it.
        """
        key: Key = tuple(reading.labels.get(name, "") for name in self.by["metric"])
        seen: list[Group] = []
        for leaf in self.metrics:
            is_divisor = leaf.test.divisor == reading.metric
            if not is_divisor and leaf.test.metric != reading.metric:
                continue
            if not leaf.takes(reading):
                continue
            group = self.group(key, reading.time)
            kept = group.readings[leaf.place].add(
                reading.labels,
                reading.time,
                reading.value,
                divisor=is_divisor,
                before=now - leaf.test.horizon - self._lateness,
                from_zero=leaf.test.counts and reading.time - self._since() > FIRST_READINGS,
            )
            if not kept:
                return None
            seen = [group]
        return seen

    # Looking

    def refresh(self, group: Group, time: int) -> None:
        """Bring the group's levels to a time."""
        for leaf in self.items:
            if leaf.level is None:
                continue
            leaf.level.move_to(time)
            _, head = group.levels.get(leaf.place, (0, -1))
            if head != leaf.level.head:
                truth = int(leaf.level.truth(np.array([group.rows[leaf.place]]))[0])
                group.levels[leaf.place] = (truth, leaf.level.head)

    def candidates(self, group: Group, time: int) -> set[int]:
        """The times, its own and later ones, at which an item may have made the condition hold."""
        ends = {time}
        for occurrences in group.occurrences.values():
            if occurrences.ends and occurrences.ends[-1] > time:
                ends.update(occurrences.ends_between(time, time + self.longest))
        if time < group.alert.newest:
            until = min(group.alert.newest, time + self.longest + 1)
            for begin in sorted(ends):
                ends.update(self._changes_between(group, begin, until))
        return ends

    def _changes_between(self, group: Group, begin: int, until: int) -> Iterator[int]:
        """Times from which on the condition may be another, and the last ones before."""
        at = self.condition.changes(group, begin)
        for _ in range(MOST_CHANGES):
            if at is None or at > until:
                return
            yield at - 1
            yield at
            at = self.condition.changes(group, at)


def _goes_on(group: Group, time: int) -> bool:
    """Whether the alert fires at a time, whatever is looked at before."""
    return group.alert.active and (group.due is None or time < group.due)


MAX_EVIDENCE = 10
_KEPT_EVIDENCE = 32


def keep_evidence(group: Group, time: int, badness: float, trace_id: bytes) -> None:
    """Remember a hit's trace; the oldest give way."""
    if trace_id:
        group.evidence.append((time, badness, trace_id))
        if len(group.evidence) > _KEPT_EVIDENCE:
            del group.evidence[0]

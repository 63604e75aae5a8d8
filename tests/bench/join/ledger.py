"""What was caused, held against what the spans that came out of the bridge say: right, wrong, unmatched."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_bridge import catalog
from otel_bridge.testing import attributes_of
from tests.bench.join.causes import LONG_WAIT, Caused, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

EVENT_NAMES = {
    Kind.RETRANSMIT: "kernel.tcp.retransmit",
    Kind.HANDSHAKE: "kernel.tls.handshake",
    Kind.SLEEP: "kernel.sched.wait",
    Kind.RECLAIM: "kernel.memory.reclaim",
}
"""The kinds whose occurrences are span events; the others are sums."""

_APART = 100_000
"""How far the probe's account of waiting for a CPU and the scheduler's own may lie apart, nanoseconds.

The first is read from the second at both ends of each wait; what is left is the moment between the server's
reading it and the span's beginning or end.
"""


@dataclass
class Tally:
    """One kind of event, counted.

    Attributes:
        caused: by known requests.
        right: of those, on the span that was active when they were caused.
        wrong: on a span that did not cause them.
        matches: by what the events on spans were matched, right and wrong ones.
        wrong_matches: the same of the wrong ones alone.
        details: of the first that are not right, for whoever looks for the reason.
    """

    caused: int = 0
    right: int = 0
    wrong: int = 0
    matches: Counter[str] = field(default_factory=Counter)
    wrong_matches: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    @property
    def unmatched(self) -> int:
        """On no span."""
        return self.caused - self.right

    def add(self, match: str, right: int, wrong: int) -> None:
        """Count what was found."""
        self.right += right
        self.wrong += wrong
        self.matches[match] += right + wrong
        self.wrong_matches[match] += wrong


class Moment(NamedTuple):
    """Unix nanoseconds in which a thread did nothing else."""

    begin: int
    end: int
    caused: Caused


@dataclass(frozen=True)
class Seen:
    """What one span says of the kernel.

    Attributes:
        attributes: its `kernel.*` ones.
        events: its span events, by name, each as its attributes and "time".
    """

    name: str
    attributes: dict[str, Any]
    events: dict[str, list[dict[str, Any]]]

    @classmethod
    def of(cls, span: Span) -> Seen:
        """Read an OTLP span."""
        events = defaultdict(list)
        for event in span.events:
            events[event.name].append(attributes_of(event.attributes) | {"time": event.time_unix_nano})
        return cls(span.name, attributes_of(span.attributes), events)


def is_long(wait: dict[str, Any]) -> bool:
    """Whether it was asleep for long, not kept from the CPU; a sleep is cut short when it begins late."""
    asleep: int = wait[catalog.KERNEL_SCHED_OFF_CPU_TIME.key]
    return asleep > LONG_WAIT * 1e9 / 2


_NOTHING = Seen("", {}, {})


class Ledger:
    """Judges one server's run.

    Args:
        causes: what its requests caused, those before the bridge had found the process left out.
        spans: all that came out of the bridge.
        reclaims: (thread, unix nanoseconds) of each reclaim, by the kernel's own trace.
        lossy_port: where packets were lost on purpose; elsewhere TCP sends again when a peer is slow.
    """

    def __init__(
        self,
        causes: Sequence[Caused],
        spans: Iterable[Span],
        reclaims: Sequence[tuple[int, int]],
        lossy_port: int,
    ) -> None:
        self._lossy_port = lossy_port
        self._causes = {caused.span_id: replace(caused) for caused in causes}
        self._seen = {span.span_id.hex(): Seen.of(span) for span in spans}
        self._moments: dict[int, list[Moment]] = defaultdict(list)
        for caused in self._causes.values():
            for begin, end in caused.moments:
                self._moments[caused.tid].append(Moment(begin, end, caused))
        for tid, time in reclaims:
            moment = self._at_work(tid, time)
            if moment is not None and moment.caused.kind is Kind.RECLAIM:
                moment.caused.count += 1
        self.tallies = {kind: Tally() for kind in Kind if kind is not Kind.NOTHING}
        self.lost_spans = sum(caused.span_id not in self._seen for caused in causes)

    def judge(self) -> dict[Kind, Tally]:
        """Count everything once."""
        for caused in self._causes.values():
            self.tallies[caused.kind].caused += 1 if caused.kind is Kind.HOG else caused.count
        self._single_occurrences()
        self._sums()
        return self.tallies

    def _at_work(self, tid: int, time: int) -> Moment | None:
        """Whose moment it was on a thread."""
        return next((moment for moment in self._moments[tid] if moment.begin <= time <= moment.end), None)

    def _single_occurrences(self) -> None:
        for span_id, seen in self._seen.items():
            caused = self._causes.get(span_id)
            for kind, name in EVENT_NAMES.items():
                events = seen.events.get(name, [])
                own = caused if caused is not None and caused.kind is kind else None
                if kind in (Kind.SLEEP, Kind.RECLAIM):
                    self._by_moment(kind, span_id, events)
                else:
                    self._by_count(kind, own, events, f"{span_id} ({seen.name})")

    def _by_moment(self, kind: Kind, span_id: str, events: list[dict[str, Any]]) -> None:
        """A thread does one thing at a time, so an event on it is its who was at work then.

        At other times threads wait and reclaim for reasons of their own, that nobody caused on purpose; also
        a thread that slept may find the interpreter's lock taken, and wait once more.
        """
        slept: set[tuple[int, int]] = set()
        for event in events:
            found = self._at_work(event[catalog.KERNEL_TID.key], event["time"])
            if found is None or found.caused.kind is not kind:
                continue
            right = int(found.caused.span_id == span_id)
            if kind is Kind.SLEEP and right:
                if (found.begin, found.end) in slept or not is_long(event):
                    continue
                slept.add((found.begin, found.end))
            self._count(kind, event, right=right, wrong=1 - right, where=span_id)

    def _by_count(self, kind: Kind, own: Caused | None, events: list[dict[str, Any]], where: str) -> None:
        """Nobody but the requests that were asked to causes these at all."""
        left = own.count if own is not None else 0
        for event in events:
            if event.get(catalog.NETWORK_PEER_PORT.key, self._lossy_port) != self._lossy_port:
                continue
            size = event.get(catalog.KERNEL_TCP_SEGMENTS.key, 1)
            port = event.get(catalog.NETWORK_LOCAL_PORT.key)
            mine = own is not None and (kind is not Kind.RETRANSMIT or port in own.ports)
            right = min(size, left) if mine else 0
            left -= right
            self._count(kind, event, right=right, wrong=size - right, where=where)
        if left and own is not None:
            self.tallies[kind].details.append(f"{left} of {own.count} missing on {where}, ports {own.ports}")

    def _count(self, kind: Kind, event: dict[str, Any], *, right: int, wrong: int, where: str) -> None:
        tally = self.tallies[kind]
        tally.add(event[catalog.KERNEL_MATCH.key], right, wrong)
        if wrong:
            tally.details.append(f"wrong on {where}: {event}")

    def _sums(self) -> None:
        for span_id, seen in self._seen.items():
            caused = self._causes.get(span_id)
            requests = seen.attributes.get(catalog.KERNEL_BLOCK_COUNT.key, 0)
            size = seen.attributes.get(catalog.KERNEL_BLOCK_BYTES.key, 0)
            if caused is not None and caused.kind is Kind.READ:
                fits = size * caused.count == caused.amount * requests
                self._add_sum(Kind.READ, seen, min(requests, caused.count) if fits else 0, requests)
            elif requests:
                self._add_sum(Kind.READ, seen, 0, requests)
        for caused in self._causes.values():
            if caused.kind is Kind.HOG:
                self._judge_wait(caused, self._seen.get(caused.span_id, _NOTHING))

    def _judge_wait(self, caused: Caused, seen: Seen) -> None:
        """The span began before the work and ended after it, so its wait lies between two accounts."""
        waited = seen.attributes.get(catalog.KERNEL_SCHED_RUN_QUEUE_TIME.key, 0)
        right = caused.amount - _APART <= waited <= caused.most + _APART
        self._add_sum(Kind.HOG, seen, int(right), 1 if right or waited > caused.amount else 0)
        if not right:
            detail = f"{caused.span_id}: {waited} ns, caused {caused.amount} to {caused.most}"
            self.tallies[Kind.HOG].details.append(detail)

    def _add_sum(self, kind: Kind, seen: Seen, right: int, found: int) -> None:
        match = seen.attributes.get(catalog.KERNEL_MATCH.key, "none")
        self.tallies[kind].add(match, right, found - right)

"""An engine on a fake clock, and items by the dozen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from otel_bridge.batch import PlanBuilder
from otel_bridge.events import COMMON, KernelEvents
from otel_bridge.readings import Reading
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.rules.config import RulesConfig
from otel_bridge.rules.load import load_texts
from otel_bridge.rules.streaming.engine import RuleEngine
from otel_bridge.rules.vocabulary import KIND_NUMBERS
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock, trace_request

if TYPE_CHECKING:
    from otel_bridge.firings import Firing
    from otel_bridge.rules.load import LoadedRule

START = 1_700_000_000_000_000_000
MS = 1_000_000
SECOND = 1_000_000_000
EVENT = np.dtype(
    [
        *COMMON.descr,
        ("size", "<u8"),
        ("run_queue_ns", "<u8"),
        ("queue_depth", "<u4"),
        ("major", "<u4"),
        ("minor", "<u4"),
        ("version", "<u2"),
        ("role", "u1"),
        ("comm", "S16"),
        ("remote_address", "V16"),
    ]
)


class Firings(list):
    """A FiringSink that keeps what it is told."""

    def take_firing(self, firing: Firing) -> None:
        self.append(firing)

    @property
    def changes(self) -> list[tuple[str, bool, float]]:
        """Rule, whether it began, seconds after START."""
        return [(item.rule, item.active, (item.since - START) / SECOND) for item in self]


def rule(when: Any, **more: Any) -> dict[str, Any]:
    """A rule with what every rule must have."""
    return {"name": "R", "severity": "warning", "summary": "s", "when": when, **more}


def load(*rules: dict[str, Any], **declared: Any):
    """Checked rules from plain objects."""
    return load_texts({"test.yaml": yaml.safe_dump({"rules": list(rules), **declared})})


class Bench:
    """A rule engine with all it needs; times are seconds after START."""

    def __init__(
        self,
        *rules: dict[str, Any],
        config: dict[str, Any] | None = None,
        loaded: list[LoadedRule] | None = None,
        **declared: Any,
    ) -> None:
        self.clock = FakeClock(START)
        self.telemetry = Telemetry()
        self.firings = Firings()
        columns = PlanBuilder()
        self.engine = RuleEngine(
            loaded or load(*rules, **declared),
            RulesConfig(**(config or {})),
            columns,
            self.telemetry,
            self.clock,
            sinks=[self.firings],
        )
        self._codec, _ = choose_codec("auto")
        self._plan = columns.build()

    def at(self, seconds: float) -> None:
        """Let time pass to a moment, looking at what is due."""
        target = START + round(seconds * SECOND)
        self.clock._move_to((target - START) / SECOND)
        self.engine.advance()

    def event(self, kind: str, at: float, **fields: Any) -> None:
        """One kernel event, handed over at once."""
        self.events([(kind, at, fields)])

    def events(self, items: list[tuple[str, float, dict[str, Any]]]) -> None:
        """Several, in one array."""
        records = np.zeros(len(items), EVENT)
        probe = "test"
        for record, (kind, at, fields) in zip(records, items, strict=True):
            record["time"] = START + round(at * SECOND)
            if kind in KIND_NUMBERS:
                record["kind"] = KIND_NUMBERS[kind]
            else:
                record["kind"], probe = KIND_NUMBERS["user"], kind
            for name, value in fields.items():
                record[name] = value
        self.engine.take(KernelEvents(probe, records))

    def span(self, at: float, **fields: Any) -> None:
        """One span that ends at a time; `seconds` long (1 by default)."""
        self.spans([{"at": at, **fields}])

    def spans(self, items: list[dict[str, Any]], resource: dict[str, Any] | None = None) -> None:
        """Several, in one request."""
        out = []
        for item in items:
            given = dict(item)
            end = START + round(given.pop("at") * SECOND)
            start = end - round(given.pop("seconds", 1.0) * SECOND)
            if given.pop("error", False):
                given["status"] = {"code": 2, "message": given.pop("message", "")}
            out.append({"start_time_unix_nano": start, "end_time_unix_nano": end, **given})
        self.engine.process(self._codec.scan(trace_request(out, resource=resource), self._plan))

    def reading(self, metric: str, at: float, value: float, /, **labels: str) -> None:
        """One reading."""
        self.engine.take_readings([Reading(metric, labels, value, START + round(at * SECOND))])

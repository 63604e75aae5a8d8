"""What rules tell people of themselves: quiet, pending, firing, and because of what."""

from __future__ import annotations

from tests.support.rules import SECOND, START, Bench, rule

TRACE = bytes(range(16))
ERRORS = {"span": "server", "is": {"status": "error"}, "within": "10s"}


def only(bench: Bench):
    [state] = bench.engine.states()
    return state


def test_a_rule_is_quiet_pending_and_firing():
    """With the group's labels and the traces that made it fire; quiet again afterwards."""
    bench = Bench(rule(ERRORS, by=["service.name"], **{"for": "5s"}))
    assert (only(bench).name, only(bench).severity) == ("R", "warning")
    assert (only(bench).active, only(bench).pending) == ([], 0)
    bench.at(1)
    bench.spans([{"at": 1, "error": True, "trace_id": TRACE}], {"service.name": "engine"})
    assert (only(bench).active, only(bench).pending) == ([], 1)
    bench.at(7)
    [alert] = only(bench).active
    assert alert.labels == {"service.name": "engine"}
    assert alert.evidence == [TRACE]
    assert (alert.since, alert.summary) == (START + 6 * SECOND, "s")
    assert only(bench).pending == 0
    bench.at(60)
    assert (only(bench).active, only(bench).pending) == ([], 0)


def test_evidence_stays_while_an_alert_is_kept_firing():
    """Of the time when the condition held last, not of now."""
    bench = Bench(rule(ERRORS, keep_firing_for="10m"))
    bench.at(1)
    bench.spans([{"at": 1, "error": True, "trace_id": TRACE}])
    bench.at(120)
    [alert] = only(bench).active
    assert alert.evidence == [TRACE]


def test_rules_of_prometheus_alone_are_not_listed():
    """The bridge knows nothing of them."""
    bench = Bench(rule(ERRORS, engine="prometheus", reason="a test"))
    assert bench.engine.states() == []

"""The streaming engine where time, loss, groups and sources are at odds."""

from __future__ import annotations

import pytest
import yaml

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.rules.config import RulesConfig
from otel_bridge.rules.load import load_texts
from otel_bridge.rules.streaming.engine import RuleEngine
from tests.support.rules import MS, SECOND, START, Bench, load, rule

SLOW = {"event": "tls_handshake", "is": {"duration": "> 500ms"}}
RARE = {"lateness": "1s"}
USED = "otel_bridge_gpu_memory_used_ratio"
FULL = {"metric": USED, "is": {"value": "> 95%"}}


def changes(bench: Bench) -> list[tuple[bool, float]]:
    return [(active, at) for _, active, at in bench.firings.changes]


# Windows


@pytest.mark.parametrize(("last", "fires"), [(6.0, True), (6.000000001, False)])
def test_a_window_holds_what_is_exactly_so_old(last, fires):
    """To the nanosecond."""
    bench = Bench(rule({**SLOW, "count": 2, "within": "5s"}))
    bench.at(7)
    bench.event("tls_handshake", 1.0, duration=600 * MS)
    bench.event("tls_handshake", last, duration=600 * MS)
    assert bool(bench.firings) == fires


@pytest.mark.parametrize(("duration", "fires"), [(500 * MS, False), (500 * MS + 1, True)])
def test_a_threshold_is_exact(duration, fires):
    """As many nanoseconds as the rule says are not more."""
    bench = Bench(rule({**SLOW, "within": "5s"}))
    bench.at(1)
    bench.event("tls_handshake", 1.0, duration=duration)
    assert bool(bench.firings) == fires


def test_a_share_slides_in_sixtieths_of_its_window():
    """Half of the handshakes are slow, until the slow one leaves the window of 3 s."""
    bench = Bench(rule({**SLOW, "ratio": "> 30%", "within": "3s"}))
    for at, duration in ((1.0, 600), (1.5, 100)):
        bench.at(at)
        bench.event("tls_handshake", at, duration=duration * MS)
    bench.at(10)
    assert changes(bench) == [(True, 1.0), (False, 4.0)]


@pytest.mark.parametrize(
    ("quick", "fires"), [(None, True), (2.0, False), (2.5, False), (3.0, False), (3.1, True)]
)
def test_what_is_no_hit_breaks_a_run(quick, fires):
    """Between the first and the last hit, or at the very time of either."""
    bench = Bench(rule({**SLOW, "consecutive": 2, "within": "5s"}))
    bench.at(4)
    if quick is not None:
        bench.event("tls_handshake", quick, duration=100 * MS)
    for at in (2.0, 3.0):
        bench.event("tls_handshake", at, duration=600 * MS)
    assert bool(bench.firings) == fires


@pytest.mark.parametrize("consecutive", [False, True])
def test_hits_that_were_forgotten_complete_nothing(consecutive):
    """An hour of hits, too few for the window at any time; then as many as it takes."""
    needed = {"consecutive": 100} if consecutive else {"count": 100}
    bench = Bench(rule({**SLOW, **needed, "within": "10s"}))
    for second in range(1, 3600):
        bench.at(second)
        bench.event("tls_handshake", second, duration=600 * MS)
    assert bench.firings == []
    for number in range(1, 101):
        bench.at(3600 + number / 100)
        bench.event("tls_handshake", 3600 + number / 100, duration=600 * MS)
    # Those of the last seconds count: ten of them and the first ninety-one, or so.
    assert [active for active, _ in changes(bench)] == [True]


# What an alert says


def test_a_firing_says_what_for_whom_and_by_which_traces():
    """The worst trace first, each once; placeholders filled; the time of the deciding event."""
    bench = Bench(
        rule(
            {**SLOW, "count": 3, "within": "5s"},
            by=[{"label": "process", "event": "tgid"}],
            summary="process {process}",
            breaker="pid-{process}",
            labels={"team": "infra"},
            runbook="Handshakes",
        ),
        config={"runbook_url": "https://runbooks.example/rules"},
    )
    bench.clock._move_to(3.5)
    for at, duration, trace in ((1, 600, b"a"), (2, 900, b"b"), (3, 700, b"a")):
        bench.event("tls_handshake", at, duration=duration * MS, trace_id=trace * 16, tgid=7)
    (firing,) = bench.firings
    assert (firing.rule, firing.active, firing.since) == ("R", True, START + 3 * SECOND)
    assert firing.labels == {"severity": "warning", "team": "infra", "process": "7"}
    assert firing.annotations == {
        "summary": "process 7",
        "runbook_url": "https://runbooks.example/rules#handshakes",
    }
    assert firing.evidence == [b"b" * 16, b"a" * 16]
    assert firing.target == "pid-7"
    assert firing.event == 3_500_000_000


def test_evidence_is_bounded():
    """Ten traces, however many hits."""
    bench = Bench(rule({**SLOW, "count": 500, "within": "5s"}))
    bench.at(1)
    bench.events(
        [
            ("tls_handshake", 1.0, {"duration": (600 + n) * MS, "trace_id": n.to_bytes(16, "big")})
            for n in range(500)
        ]
    )
    (firing,) = bench.firings
    assert len(firing.evidence) == 10


# Losses (cases.md ebpf-drops)


def test_a_window_with_losses_says_so():
    """The alert is marked and counted; losses of other probes do not concern it."""
    bench = Bench(rule({**SLOW, "within": "5s"}))
    bench.at(1)
    bench.engine.lost("sched", 5)
    bench.engine.lost("tls", 3)
    bench.at(2)
    bench.event("tls_handshake", 2, duration=600 * MS)
    (firing,) = bench.firings
    assert firing.annotations["incomplete"] == "kernel events of the window were lost: 3 of probe tls"
    assert bench.telemetry.value(catalog.RULES_INCOMPLETE, rule="R") == 1


def test_an_alert_that_began_before_its_losses_were_counted_says_so_then():
    """Once, under the same labels; it neither begins nor ends by it. One of another probe says nothing."""
    bench = Bench(rule({**SLOW, "within": "5s"}), rule({"event": "oom_kill", "within": "5s"}, name="Killed"))
    bench.at(1)
    bench.event("oom_kill", 1)
    bench.event("tls_handshake", 1, duration=600 * MS)
    assert "incomplete" not in bench.firings[1].annotations
    for count in (3, 4):
        bench.at(1.5)
        bench.engine.lost("tls", count)
    *_, again = bench.firings
    assert [firing.again for firing in bench.firings] == [False, False, True]
    assert (again.rule, again.active, again.labels) == ("R", True, bench.firings[1].labels)
    assert again.annotations["incomplete"] == "kernel events of the window were lost: 3 of probe tls"
    assert bench.telemetry.value(catalog.RULES_INCOMPLETE, rule="R") == 1
    assert bench.telemetry.value(catalog.RULES_FIRINGS, rule="R") == 1
    # The next alert, after that one has ended.
    bench.at(6.3)
    bench.event("tls_handshake", 6.3, duration=600 * MS)
    assert bench.firings[-1].annotations["incomplete"].endswith(": 7 of probe tls")
    assert bench.telemetry.value(catalog.RULES_INCOMPLETE, rule="R") == 2


def test_a_window_before_the_losses_does_not_say_so():
    """Five seconds later the window is whole again."""
    bench = Bench(rule({**SLOW, "within": "5s"}))
    bench.at(1)
    bench.engine.lost("tls", 3)
    bench.at(7)
    bench.event("tls_handshake", 7, duration=600 * MS)
    assert "incomplete" not in bench.firings[0].annotations


@pytest.mark.parametrize(("probe", "fires_at"), [("sched", 6.0), ("tls", 11.000000001)])
def test_absence_does_not_fire_over_losses(probe, fires_at):
    """Only once a whole window, and the time for late ones, has passed without a loss."""
    bench = Bench(rule({"absent": {"event": "tls_handshake", "within": "5s"}}), config=RARE)
    bench.at(5)
    bench.engine.lost(probe, 1)
    bench.at(30)
    assert changes(bench) == [(True, fires_at)]


def test_not_is_not_known_over_losses():
    """What may have been lost cannot be said not to have happened."""
    when = {"all": [SLOW, {"not": {"event": "oom_kill"}}], "within": "5s"}
    for probe, fires in (("memory", False), ("tls", True)):
        bench = Bench(rule(when))
        bench.at(1)
        bench.engine.lost(probe, 1)
        bench.event("tls_handshake", 1, duration=600 * MS)
        assert bool(bench.firings) == fires


# Readings (cases.md gpu-lost, gpu-mig-blanks)


def test_stale_readings_neither_trip_nor_close():
    """20 s at 96 %, then nothing: no trip at 30 s; an open alert is not closed by silence."""
    bench = Bench(rule(FULL, **{"for": "30s"}))
    for second in range(1, 21):
        bench.at(second)
        bench.reading(USED, second, 0.96, gpu_uuid="GPU-1")
    bench.at(120)
    assert bench.firings == []
    bench = Bench(rule(FULL))
    bench.at(1)
    bench.reading(USED, 1, 0.96, gpu_uuid="GPU-1")
    bench.at(120)
    assert changes(bench) == [(True, 1.0)]
    bench.reading(USED, 120, 0.5, gpu_uuid="GPU-1")
    assert changes(bench) == [(True, 1.0), (False, 120.0)]


def test_one_series_of_several_is_enough():
    """Without `by`, any GPU; with `where`, only those asked for."""
    bench = Bench(rule(FULL), rule({**FULL, "where": {"gpu_uuid": "GPU-2*"}}, name="Second"))
    bench.at(1)
    bench.reading(USED, 1, 0.5, gpu_uuid="GPU-20")
    bench.reading(USED, 1, 0.99, gpu_uuid="GPU-1")
    assert [name for name, _, _ in bench.firings.changes] == ["R"]


def test_counters_that_restart_count_from_zero():
    """A restart of whoever counts is no fall."""
    metric = "otel_bridge_receiver_accepted_items"
    bench = Bench(rule({"metric": metric, "increase": "> 10", "within": "60s"}))
    labels = {"transport": "grpc", "signal": "traces"}
    for second, value in enumerate((100, 105, 3, 6), 1):
        bench.at(second)
        bench.reading(metric, second, value, **labels)
    assert changes(bench) == [(True, 4.0)]


def test_series_of_a_group_are_bounded():
    """What is over the limit is counted, and the others go on."""
    bench = Bench(rule(FULL))
    bench.at(1)
    for number in range(150):
        bench.reading(USED, 1, 0.5, gpu_uuid=f"GPU-{number}")
    assert bench.telemetry.value(catalog.RULES_IGNORED, reason="series") == 50
    bench.reading(USED, 1, 0.99, gpu_uuid="GPU-0")
    assert changes(bench) == [(True, 1.0)]


@pytest.mark.parametrize(
    ("condition", "values", "fires"),
    [
        ({"mean": {"is": "> 50%"}}, (0.4, 0.5, 0.7), True),
        ({"mean": {"is": "> 50%"}}, (0.4, 0.5, 0.6), False),
        ({"quantile": {"q": 0.5, "is": ">= 50%"}}, (0.4, 0.5, 0.9), True),
        ({"quantile": {"q": 0.5, "is": "> 50%", "at_least": 3}}, (0.4, 0.5, 0.9), False),
        ({"slope": "> 9%/s"}, (0.1, 0.2, 0.3), True),
        ({"slope": "> 11%/s"}, (0.1, 0.2, 0.3), False),
        ({"delta": {"stat": "mean", "is": "> 50%", "against": "1s"}}, (0.2, 0.2, 0.4), False),
    ],
)
def test_statistics_of_gauges(condition, values, fires):
    """Over the readings of a window of 10 s."""
    bench = Bench(rule({"metric": USED, "within": "10s", **condition}))
    bench.at(3)
    bench.engine.advance()
    for second, value in enumerate(values, 1):
        bench.reading(USED, second, value, gpu_uuid="GPU-1")
    assert bool(bench.firings) == fires


def test_a_change_against_the_time_before():
    """The mean of 2 s against that of the 5 s before."""
    when = {"metric": USED, "within": "2s", "delta": {"stat": "mean", "is": "> 50%", "against": "5s"}}
    bench = Bench(rule(when))
    for second, value in enumerate((0.2, 0.2, 0.2, 0.2, 0.29, 0.31, 0.32), 1):
        bench.at(second)
        bench.reading(USED, second, value, gpu_uuid="GPU-1")
    # At 7 s: the mean of (0.29, 0.31, 0.32) against that of four times 0.2.
    assert changes(bench) == [(True, 7.0)]


# Groups (cases.md rule-labels)


def test_a_label_with_a_million_values_is_bounded():
    """Memory stays within `max_groups`, evictions are counted, and an alert that fires is not forgotten."""
    bench = Bench(
        rule(
            {"span": "any", "is": {"status": "error"}, "count": 2, "within": "60s"},
            by=["x.model"],
            max_groups=10,
        ),
        rule(
            {"span": "any", "is": {"status": "error"}, "ratio": "> 90%", "within": "60s"},
            name="Share",
            by=["x.model"],
            max_groups=10,
        ),
    )
    bench.at(1)
    bench.spans([{"at": 1, "error": True, "attributes": {"x.model": "honest"}}] * 2)
    for start in range(0, 1_000_000, 10_000):
        bench.spans(
            [
                {"at": 1, "attributes": {"x.model": f"m{start + n}"}, "error": n % 100 == 0}
                for n in range(10_000)
            ]
        )
    for runtime in bench.engine.runtimes:
        assert len(runtime.groups) == 10
        assert ("honest",) in runtime.groups
    assert bench.telemetry.value(catalog.RULES_EVICTED, rule="R") == 1 + 10_000 - 10
    assert [f.labels["x_model"] for f in bench.firings if f.rule == "R" and f.active] == ["honest"]


def test_an_alert_that_is_pushed_out_is_resolved():
    """When every group fires, the idlest gives way, and whoever follows alerts hears of it."""
    bench = Bench(rule({**SLOW, "within": "60s"}, by=["tgid"], max_groups=2))
    bench.at(1)
    for process in (1, 2, 3):
        bench.event("tls_handshake", 1, duration=600 * MS, tgid=process)
    assert [(f.labels["tgid"], f.active) for f in bench.firings] == [
        ("1", True),
        ("2", True),
        ("1", False),
        ("3", True),
    ]


def test_long_values_are_cut():
    """A label is a name, not a document."""
    bench = Bench(rule({"span": "any", "within": "5s"}, by=["x.text"]))
    bench.at(1)
    bench.span(1, attributes={"x.text": "é" * 5000})
    assert len(bench.firings[0].labels["x_text"].encode()) <= 256


# Clocks


def test_items_too_late_or_from_the_future_are_counted():
    """And move nothing."""
    bench = Bench(rule({**SLOW, "within": "5s"}), config={"lateness": "10s", "max_ahead": "2s"})
    bench.at(100)
    for at in (89.9, 102.1, 5e9):
        bench.event("tls_handshake", at, duration=600 * MS)
    assert bench.firings == []
    assert bench.telemetry.value(catalog.RULES_IGNORED, reason="late") == 1
    assert bench.telemetry.value(catalog.RULES_IGNORED, reason="future") == 2


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_begins_windows_anew(step):
    """No alert out of thin air, none for ever, and the rule works on."""
    bench = Bench(rule({**SLOW, "count": 2, "within": "5s"}, keep_firing_for="10s"))
    bench.at(1)
    bench.event("tls_handshake", 1, duration=600 * MS)
    bench.event("tls_handshake", 1, duration=600 * MS)
    bench.clock.step_wall(step)
    bench.at(2)
    bench.event("tls_handshake", 2 + step, duration=600 * MS)
    bench.at(30)
    assert [active for active, _ in changes(bench)] == [True, False]
    bench.event("tls_handshake", 30 + step, duration=600 * MS)
    bench.event("tls_handshake", 30 + step, duration=600 * MS)
    assert [active for active, _ in changes(bench)] == [True, False, True]
    assert bench.telemetry.value(catalog.RULES_CLOCK_STEPS) == 1


# Spans


def test_text_conditions():
    """Whole words, globs, negation; what lacks the field passes none of them."""
    tests = {
        "Exact": {"gen_ai.request.model": "llama"},
        "Glob": {"gen_ai.request.model": "lla*"},
        "Listed": {"gen_ai.request.model": ["qwen", "llama"]},
        "Negated": {"gen_ai.request.model": "!= llama"},
        "Number": {"http.response.status_code": [503, 504]},
        "Name": {"name": "chat *"},
    }
    rules = [rule({"span": "server", "is": test, "within": "5s"}, name=name) for name, test in tests.items()]
    for span, fired in (
        ({"attributes": {"gen_ai.request.model": "llama"}}, {"Exact", "Glob", "Listed"}),
        ({"attributes": {"gen_ai.request.model": "LLAMA"}}, {"Negated"}),
        ({"attributes": {"gen_ai.request.model": "llama-2"}}, {"Glob", "Negated"}),
        ({"attributes": {"http.response.status_code": 503}}, {"Number"}),
        ({"name": "chat llama"}, {"Name"}),
        ({"kind": 3, "name": "chat llama"}, set()),
        ({}, set()),
    ):
        bench = Bench(*rules)
        bench.at(1)
        bench.span(1, **span)
        assert {firing.rule for firing in bench.firings} == fired, span


def test_a_refused_span_is_no_item():
    """It is not delivered either."""
    bench = Bench(rule({"span": "any", "within": "5s"}))
    bench.at(1)
    bench.span(1, trace_id=b"short")
    assert bench.firings == []


def test_five_consecutive_slow_requests():
    """A quick one between them starts the count anew; groups do not mix."""
    when = {"span": "server", "is": {"duration": "> 2s"}, "consecutive": 5, "within": "10m"}
    bench = Bench(rule(when, by=["service.name"]))
    for second in range(1, 12):
        bench.at(second)
        bench.spans([{"at": second, "seconds": 1.9 if second == 5 else 2.1}], {"service.name": "a"})
        bench.spans([{"at": second, "seconds": 2.1 if second % 2 else 1.0}], {"service.name": "b"})
    assert [(f.labels["service_name"], (f.since - START) / SECOND) for f in bench.firings] == [("a", 10.0)]


# Rules that refer to rules


def test_a_rule_may_build_on_another():
    """It fires with it, and ends with it."""
    bench = Bench(
        rule({"all": [{"rule": "Slow"}, {"event": "oom_kill", "within": "5s"}]}, name="Both"),
        rule({**SLOW, "within": "5s"}, name="Slow"),
    )
    bench.at(1)
    bench.event("oom_kill", 1)
    bench.event("tls_handshake", 1, duration=600 * MS)
    bench.at(20)
    assert bench.firings.changes[:2] == [("Slow", True, 1.0), ("Both", True, 1.0)]
    assert sorted(bench.firings.changes[2:]) == [("Both", False, 6.000000001), ("Slow", False, 6.000000001)]


def test_a_rule_may_build_on_another_group_by_group():
    """The same `by`: each group by itself."""
    by = ["tgid"]
    bench = Bench(
        rule({"all": [{"rule": "Slow"}, {"event": "oom_kill", "within": "5s"}]}, name="Both", by=by),
        rule({**SLOW, "within": "5s"}, name="Slow", by=by),
    )
    bench.at(1)
    bench.event("tls_handshake", 1, duration=600 * MS, tgid=1)
    bench.event("oom_kill", 1, tgid=2)
    assert [firing.rule for firing in bench.firings] == ["Slow"]
    bench.event("oom_kill", 1, tgid=1)
    assert [(f.rule, f.labels["tgid"]) for f in bench.firings] == [("Slow", "1"), ("Both", "1")]


# Reload


def test_a_reload_keeps_windows_and_resolves_what_is_gone():
    """Rules that stayed the same go on where they were."""
    same = rule({**SLOW, "count": 2, "within": "5s"}, name="Same")
    share = rule({**SLOW, "ratio": {"is": "> 50%", "at_least": 2}, "within": "6s"}, name="Share")
    gone = rule({**SLOW, "within": "60s"}, name="Gone")
    bench = Bench(same, share, gone)
    bench.at(1)
    bench.event("tls_handshake", 1, duration=600 * MS)
    old, columns = bench.engine, PlanBuilder()
    bench.engine = RuleEngine(
        load(same, share), RulesConfig(), columns, bench.telemetry, bench.clock, sinks=[bench.firings]
    )
    bench.engine.adopt(old)
    bench.at(2)
    bench.event("tls_handshake", 2, duration=600 * MS)
    assert [(name, active) for name, active, _ in bench.firings.changes] == [
        ("Gone", True),
        ("Gone", False),
        ("Same", True),
        ("Share", True),
    ]
    assert bench.telemetry.value(catalog.RULES_ACTIVE, rule="Gone") == 0


def test_an_engine_that_was_replaced_looks_at_nothing():
    """A batch that is still on its way through the old data path must not change what the new one has."""
    bench = Bench(rule({"span": "any", "within": "5s"}))
    old, columns = bench.engine, PlanBuilder()
    new = RuleEngine(
        load(rule({"span": "any", "within": "5s"})), RulesConfig(), columns, bench.telemetry, bench.clock
    )
    new.adopt(old)
    bench.clock._move_to(1)
    bench.span(1)
    assert bench.firings == []


def test_two_rule_sets_may_disagree_on_a_unit():
    """Each is held to its own."""
    texts = {}
    for name, unit in (("Seconds", "s"), ("Milliseconds", "ms")):
        when = {"span": "any", "is": {"my.time": "> 2s"}, "within": "5s"}
        document = {"rules": [rule(when, name=name)], "attributes": {"my.time": unit}}
        texts[f"{name}.yaml"] = yaml.safe_dump(document)
    bench = Bench(loaded=load_texts(texts))
    bench.at(1)
    bench.span(1, attributes={"my.time": 5})
    assert [firing.rule for firing in bench.firings] == ["Seconds"]

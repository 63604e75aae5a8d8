"""The alerts that fire, as a scrape finds them."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from otel_bridge import catalog
from otel_bridge.rules.outputs.active import ActiveAlerts, identity, links
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock
from tests.unit.rules.outputs.receiver import START, TRACE, firing


@pytest.fixture
def clock():
    return FakeClock(START)


@pytest.fixture
def telemetry():
    return Telemetry()


@pytest.fixture
def alerts(telemetry, clock):
    return ActiveAlerts(telemetry, clock, limit=3, shortest=60.0)


def shown(telemetry):
    """The labels of each alert that a scrape finds."""
    text = generate_latest(telemetry.registry).decode()
    families = text_string_to_metric_families(text.replace("# EOF", ""))
    return [
        sample.labels
        for family in families
        if family.name == catalog.RULES_ALERTS.name
        for sample in family.samples
    ]


def test_an_alert_is_a_series_while_it_fires(alerts, telemetry, clock):
    """With the labels of its group, named as Prometheus names them; without the empty ones."""
    alerts.take_firing(firing(**{"service.name": "a", "pod": ""}))
    clock._move_to(100.0)
    expected = {"alertname": "GpuLost", "severity": "critical", "service_name": "a"}
    assert shown(telemetry) == [expected]
    alerts.take_firing(firing(active=False, at=100.0, **{"service.name": "a", "pod": ""}))
    assert shown(telemetry) == []


def test_a_short_alert_is_shown_for_a_scrape_to_see(alerts, telemetry, clock):
    """For a minute after it began, though it ended at once."""
    alerts.take_firing(firing())
    alerts.take_firing(firing(active=False, at=0.5))
    clock._move_to(59.0)
    assert len(shown(telemetry)) == 1
    clock._move_to(60.0)
    assert shown(telemetry) == []


def test_an_alert_that_begins_anew_while_shown_is_the_same_one(alerts, clock):
    """It keeps its beginning."""
    alerts.take_firing(firing())
    alerts.take_firing(firing(active=False, at=1.0))
    clock._move_to(30.0)
    alerts.take_firing(firing(at=30.0))
    (alert,) = alerts.snapshot()
    assert alert.began == START
    assert not alert.ended
    clock._move_to(200.0)
    assert alert.fires(200.0)


def test_one_that_begins_anew_later_is_another(alerts, clock):
    """With a beginning of its own."""
    alerts.take_firing(firing())
    clock._move_to(90.0)
    alerts.take_firing(firing(active=False, at=90.0))
    clock._move_to(120.0)
    alerts.take_firing(firing(at=120.0))
    (alert,) = alerts.snapshot()
    assert alert.began == START + 120_000_000_000


def test_an_alert_that_is_told_again_has_its_new_annotations(alerts, telemetry, clock):
    """It is the same one; told again after its end it is nothing."""
    more = replace(firing(), annotations={"incomplete": "some were lost"}, again=True)
    alerts.take_firing(more)
    assert alerts.snapshot() == []
    alerts.take_firing(firing())
    clock._move_to(5.0)
    alerts.take_firing(more)
    (alert,) = alerts.snapshot()
    assert (alert.began, alert.firing.annotations) == (START, {"incomplete": "some were lost"})
    assert len(shown(telemetry)) == 1


def test_memory_is_bounded(alerts, telemetry, clock):
    """Beyond the limit an alert that ended gives way; when all fire the new one is counted."""
    for name in "abc":
        alerts.take_firing(firing(pod=name))
    alerts.take_firing(firing(pod="d"))
    assert telemetry.value(catalog.ALERTMANAGER_DROPPED, reason="full") == 1
    clock._move_to(100.0)
    alerts.take_firing(firing(active=False, at=100.0, pod="b"))
    alerts.take_firing(firing(at=100.0, pod="e"))
    assert [dict(alert.labels)["pod"] for alert in alerts.snapshot()] == ["a", "c", "e"]
    assert telemetry.value(catalog.ALERTMANAGER_DROPPED, reason="full") == 1


def test_what_ended_is_forgotten(alerts, clock):
    """After a quarter of an hour."""
    alerts.take_firing(firing())
    clock._move_to(100.0)
    alerts.take_firing(firing(active=False, at=100.0))
    clock._move_to(1000.0)
    assert len(alerts.snapshot()) == 1
    clock._move_to(1001.0)
    assert alerts.snapshot() == []


def test_an_end_without_a_beginning_is_nothing(alerts):
    """As after a restart."""
    alerts.take_firing(firing(active=False))
    assert alerts.snapshot() == []


def test_evidence_is_no_label():
    """A trace id in a label would make a new alert each time."""
    one = firing()
    assert TRACE.hex() not in str(identity(one))
    assert links(one, None) == {"trace_ids": TRACE.hex()}
    assert links(one, "https://t/{trace_id}") == {
        "trace_ids": TRACE.hex(),
        "traces": f"https://t/{TRACE.hex()}",
    }


def test_firings_of_many_threads(telemetry, clock):
    """Every one of them is there."""
    alerts = ActiveAlerts(telemetry, clock, limit=1000, shortest=0.0)

    def fire(thread: int) -> None:
        for number in range(50):
            alerts.take_firing(firing(pod=f"{thread}-{number}"))

    threads = [threading.Thread(target=fire, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(alerts.snapshot()) == 200

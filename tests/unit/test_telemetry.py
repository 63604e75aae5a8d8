"""Updates that wait: no reader lacks one, whichever way the metrics are read."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import generate_latest

from otel_bridge import catalog
from otel_bridge.telemetry import Deferred, Telemetry

COUNTER = catalog.RECEIVER_ACCEPTED
HISTOGRAM = catalog.RECEIVER_DURATION
LABELS = ("grpc", "traces")


def test_the_whole_registry_has_every_update():
    telemetry = Telemetry()
    count, observe = telemetry.deferred(COUNTER, *LABELS), telemetry.deferred(HISTOGRAM, *LABELS)
    count(3)
    count()
    observe(0.25)
    text = generate_latest(telemetry.registry).decode()
    labels = '{signal="traces",transport="grpc"}'
    assert f"{COUNTER.name}_total{labels} 4.0" in text
    assert f"{HISTOGRAM.name}_count{labels} 1.0" in text
    assert f"{HISTOGRAM.name}_sum{labels} 0.25" in text


def test_a_part_of_the_registry_has_every_update():
    telemetry = Telemetry()
    telemetry.deferred(COUNTER, *LABELS)(7)
    (family,) = telemetry.registry.restricted_registry([COUNTER.name + "_total"]).collect()
    assert [sample.value for sample in family.samples] == [7]
    telemetry.deferred(COUNTER, *LABELS)(1)  # beside the first, on the same series
    assert telemetry.value(COUNTER, transport="grpc", signal="traces") == 8


def test_a_series_is_there_before_its_first_update():
    telemetry = Telemetry()
    telemetry.deferred(COUNTER, *LABELS)
    text = generate_latest(telemetry.registry).decode()
    assert f'{COUNTER.name}_total{{signal="traces",transport="grpc"}} 0.0' in text


def test_what_nobody_reads_does_not_pile_up():
    made: list[float] = []
    updates = Deferred(made.extend)
    for _ in range(Deferred.MOST - 1):
        updates()
    assert not made
    updates()
    assert len(made) == Deferred.MOST


def test_threads_lose_nothing_to_one_another():
    made: list[float] = []
    updates = Deferred(made.extend)  # extending a list is one step for all threads

    def work() -> None:
        for number in range(20_000):
            updates()
            if number % 7 == 0:
                updates.flush()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    updates.flush()
    assert len(made) == 80_000


def test_a_gauge_cannot_wait():
    with pytest.raises(TypeError, match="only counters and histograms"):
        Telemetry().deferred(catalog.EXPORTER_QUEUE_BYTES, "otlp", "memory")

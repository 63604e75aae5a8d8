"""Spans say what their process's GPU went through: by columns, with what was read and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.gpu.assess import Assessor
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.gpu.history import Series, at_start, worst_within
from otel_bridge.gpu.processes import Process
from otel_bridge.gpu.usage import Usage
from otel_bridge.processors.gpu.gpu import GpuSpans
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.testing import attributes_of, spans_of, trace_request

SECOND = 1_000_000_000
T0 = 1_700_000_000 * SECOND
CONTAINER, OTHER = "a" * 64, "b" * 64


def process(pid, *, own_pid=None, container="", ancestors=()):
    """A process that uses a GPU."""
    return Process(pid, 1, own_pid or pid, container, "", "", ancestors)


CONTAINED = process(7000, own_pid=7, container=CONTAINER)


def assessor(uuid, memory, utilization):
    """A GPU of which a reading was taken each second from T0 on."""
    made = Assessor(uuid, GpuConfig())
    for second, (full, busy) in enumerate(zip(memory, utilization, strict=True)):
        made.memory.add(T0 + second * SECOND, full)
        made.utilization.add(T0 + second * SECOND, busy)
    return made


@pytest.fixture
def usage():
    """Process 100 on two GPUs, of which the second is fuller from second 3 on."""
    made = Usage(600.0)
    cards = {
        "GPU-a": assessor("GPU-a", [0.5, 0.6, 0.5, 0.4, 0.4, 0.4], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]),
        "GPU-b": assessor("GPU-b", [0.1, 0.1, 0.1, 0.9, 0.7, 0.1], [0.0, 0.0, 0.0, 1.0, 0.9, 0.0]),
    }
    made.update({"GPU-a": [process(100)], "GPU-b": [process(100)]}, cards, 0.0)
    return made


def spans(usage, times, resource):
    """Spans of these seconds after T0 as they leave."""
    codec, _ = choose_codec("auto")
    columns = PlanBuilder()
    processor = GpuSpans(columns, usage)
    data = trace_request(
        [
            {
                "start_time_unix_nano": T0 + round(start * SECOND),
                "end_time_unix_nano": T0 + round(end * SECOND),
            }
            for start, end in times
        ],
        resource={"service.name": "llama", **resource},
    )
    batch = codec.scan(data, columns.build())
    processor.process(batch)
    return [attributes_of(span.attributes) for span in spans_of(codec.splice(batch))]


def test_memory_and_utilization_at_the_start_and_at_their_worst(usage):
    """Of the GPU whose memory was fullest in the span's time."""
    first, second = spans(usage, [(0.5, 1.5), (2.5, 4.5)], {"process.pid": 100})
    assert first == {
        catalog.HW_ID.key: "GPU-a",
        catalog.GPU_COUNT.key: 2,
        catalog.GPU_MATCH.key: "process",
        catalog.GPU_MEMORY_AT_START.key: 0.5,
        catalog.GPU_MEMORY_MAX.key: 0.6,
        catalog.GPU_UTILIZATION_AT_START.key: 0.1,
        catalog.GPU_UTILIZATION_MAX.key: 0.2,
    }
    assert second[catalog.HW_ID.key] == "GPU-b"
    assert second[catalog.GPU_MEMORY_AT_START.key] == 0.1
    assert second[catalog.GPU_MEMORY_MAX.key] == 0.9
    assert second[catalog.GPU_UTILIZATION_MAX.key] == 1.0


@pytest.mark.parametrize(
    "resource", [{}, {"process.pid": 101}, {"process.pid": "100"}, {"container.id": CONTAINER}]
)
def test_spans_of_others_get_nothing(usage, resource):
    """Another process, none, or one that is no number."""
    assert spans(usage, [(0.5, 1.5)], resource) == [{}]


def test_no_gpu_costs_nothing_and_says_nothing():
    """Nobody uses one."""
    assert spans(Usage(600.0), [(0.5, 1.5)], {"process.pid": 100}) == [{}]


def test_a_span_of_which_nothing_was_read_gets_nothing(usage):
    """Before the first reading, and long after the last."""
    assert spans(usage, [(-60, -50), (60, 70)], {"process.pid": 100}) == [{}, {}]


def test_a_span_that_began_before_the_readings_has_a_worst_and_no_start(usage):
    """Never a made-up start."""
    [found] = spans(usage, [(-60, 1.5)], {"process.pid": 100})
    assert found[catalog.GPU_MEMORY_MAX.key] == 0.6
    assert catalog.GPU_MEMORY_AT_START.key not in found


@pytest.mark.parametrize(
    ("user", "resource", "match"),
    [
        (
            process(7000, own_pid=7, container=CONTAINER),
            {"process.pid": 7, "container.id": CONTAINER},
            "process",
        ),
        (CONTAINED, {"process.pid": 7}, "process"),
        (CONTAINED, {"container.id": CONTAINER[:12]}, "container"),
        (
            process(7000, own_pid=9, container=CONTAINER),
            {"process.pid": 7, "container.id": CONTAINER},
            "container",
        ),
        (CONTAINED, {"process.pid": 7, "container.id": OTHER}, ""),
        (process(7000, ancestors=(6000, 5000)), {"process.pid": 5000}, "child"),
    ],
)
def test_how_a_process_is_found(user, resource, match):
    """By itself, by its child, by its container; never by a number that may be another's."""
    usage = Usage(600.0)
    usage.update({"GPU-a": [user]}, {"GPU-a": assessor("GPU-a", [0.5, 0.6], [0.1, 0.2])}, 0.0)
    [found] = spans(usage, [(0.5, 1.5)], resource)
    assert found.get(catalog.GPU_MATCH.key, "") == match


def test_a_number_that_two_containers_use_names_neither():
    """Each counts from 1."""
    usage = Usage(600.0)
    users = [process(7000, own_pid=1, container=CONTAINER), process(8000, own_pid=1, container=OTHER)]
    usage.update({"GPU-a": users}, {"GPU-a": assessor("GPU-a", [0.5, 0.6], [0.1, 0.2])}, 0.0)
    assert spans(usage, [(0.5, 1.5)], {"process.pid": 1}) == [{}]


def test_a_process_is_remembered_after_its_end():
    """For spans that come late; and then forgotten."""
    usage = Usage(60.0)
    cards = {"GPU-a": assessor("GPU-a", [0.5, 0.6], [0.1, 0.2])}
    usage.update({"GPU-a": [process(100)]}, cards, 0.0)
    usage.update({"GPU-a": []}, cards, 60.0)
    assert usage.is_used
    usage.update({"GPU-a": []}, cards, 61.0)
    assert not usage.is_used


def test_services_are_learnt_from_resources(usage):
    """So that GPU memory has a service."""
    spans(usage, [(0.5, 1.5)], {"process.pid": 100})
    assert usage.services.name_of(process(100)) == "llama"
    assert usage.services.name_of(process(101)) == ""


values = st.lists(st.tuples(st.integers(1, 50), st.floats(0, 1)), min_size=0, max_size=40)


@given(values, st.lists(st.tuples(st.integers(-20, 900), st.integers(0, 300)), min_size=1, max_size=20))
def test_worst_within_is_its_definition(steps, intervals):
    """Held against a loop."""
    times = np.cumsum([step for step, _ in steps]) if steps else np.array([], np.int64)
    series = np.array([value for _, value in steps])
    starts = np.array([start for start, _ in intervals])
    ends = starts + np.array([length for _, length in intervals])
    found = worst_within(times, series, starts, ends, 30)
    began = at_start(times, series, starts, 30)
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        before = [v for t, v in zip(times, series, strict=True) if start - 30 <= t <= start]
        inside = [v for t, v in zip(times, series, strict=True) if start < t <= end]
        assert (before[-1] if before else None) == (None if np.isnan(began[row]) else began[row])
        worst = max(inside + before[-1:], default=None)
        assert worst == (None if np.isnan(found[row]) else found[row])


@given(st.lists(st.integers(1, 10), max_size=300), st.integers(1, 100))
def test_a_series_keeps_its_newest(steps, capacity):
    """In order, as many as it has room for; what is not newer is left out."""
    series, times = Series(capacity), np.cumsum(steps).tolist()
    for moment in times:
        series.add(moment, float(moment))
        series.add(moment, -1.0)
    kept, found = series.since()
    assert kept.tolist() == times[-capacity:]
    assert found.tolist() == [float(moment) for moment in times[-capacity:]]
    assert series.since(50)[0].tolist() == [moment for moment in times[-capacity:] if moment >= 50]

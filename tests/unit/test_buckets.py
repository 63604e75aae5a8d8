"""Values added to the series of their cells: native against reference, and what each is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_bridge import buckets, buckets_reference
from otel_bridge.buckets import OVERFLOW, Buckets, SeriesOfCells

native = pytest.importorskip("otel_bridge._native.wire", reason="the native crate is not installed")
if not hasattr(native, "Buckets"):
    pytest.skip("the installed native crate is older than this source", allow_module_level=True)

BOUNDS = (1.0, 2.0, 5.0)
ROWS = 4


@pytest.fixture(params=["native", "reference"])
def kernels(request, monkeypatch):
    """Both behind the same door."""
    monkeypatch.setattr(buckets, "_kernels", native if request.param == "native" else buckets_reference)


class Metric:
    """Buckets whose cells have series: cell n has row n + 1."""

    def __init__(self, *, cells=ROWS - 1, exemplars=True):
        self.buckets = Buckets(BOUNDS, exemplars=exemplars)
        self.buckets.grow(ROWS)
        self.table = SeriesOfCells()
        for cell in range(cells):
            self.table.set(cell, cell + 1)

    def observe(self, values, cells=None, *, mask=None, largest=math.inf, now=100.0, age=60.0):
        """Take values, of one cell where no others are given."""
        count = len(values)
        return self.buckets.observe(
            np.ones(count, np.bool_) if mask is None else np.array(mask, np.bool_),
            np.array([0] * count if cells is None else cells, "<u4").tobytes(),
            np.array(values, "<f8"),
            self.table,
            largest=largest,
            now=now,
            oldest=now - age,
        )


@pytest.mark.usefixtures("kernels")
def test_a_bound_is_within_its_bucket():
    """As Prometheus's `le`; what exceeds the last bound has a bucket of its own."""
    metric = Metric()
    metric.observe([0.0, 1.0, 1.5, 2.0, 5.0, 5.1, math.inf])
    sums, counts, _ = metric.buckets.read()
    assert counts.tolist() == [[0] * 4, [2, 2, 1, 2], [0] * 4, [0] * 4]
    assert sums[1] == math.inf
    assert metric.buckets.last().tolist() == [0, 100, 0, 0]


@pytest.mark.usefixtures("kernels")
def test_what_is_no_value_is_not_added():
    """NaN is none; negative and too large ones are told; who is not picked is not looked at."""
    metric = Metric()
    found = metric.observe([math.nan, -1, 7, 8, -1], mask=[1, 1, 1, 0, 0], largest=6)
    assert (found.negative, found.too_large, found.overflowed) == (1, 1, 0)
    assert not metric.buckets.read()[1].any()


@pytest.mark.usefixtures("kernels")
def test_nothing_is_added_before_each_cell_has_a_series():
    """Cells that have none are told once, ascending; also those that had one."""
    metric = Metric()
    found = metric.observe([1, 1, 1, 1], [9, 0, 7, 9])
    assert found.unknown == [7, 9]
    assert not metric.buckets.read()[1].any()
    metric.table.set(7, OVERFLOW)
    metric.table.set(9, 3)
    assert metric.observe([1, 1, 1, 1], [9, 0, 7, 9]).overflowed == 1
    assert metric.buckets.read()[1].sum(axis=1).tolist() == [1, 1, 0, 2]
    metric.table.forget([3, OVERFLOW])
    assert metric.observe([1, 1, 1], [9, 7, 2]).unknown == [2, 7, 9]
    metric.buckets.clear([3])
    assert metric.buckets.read()[1].sum(axis=1).tolist() == [1, 1, 0, 0]


@pytest.mark.usefixtures("kernels")
def test_the_worst_recent_value_of_a_bucket_is_kept():
    """Whose it is, is told; an old one gives way to any."""
    metric = Metric()
    found = metric.observe([3.0, 4.0, 3.5, 0.5])
    assert list(zip(found.buckets.tolist(), found.rows.tolist(), strict=True))[-2:] == [(6, 1), (4, 3)]
    assert not len(metric.observe([3.9], now=130.0).rows)
    assert metric.observe([3.9], now=161.0).rows.tolist() == [0]
    assert metric.buckets.read()[2][1].tolist() == [0.5, -math.inf, 3.9, -math.inf]


@pytest.mark.usefixtures("kernels")
def test_without_exemplars_none_are_kept():
    """Nor is there memory for them."""
    metric, other = Metric(exemplars=False), Metric()
    assert not len(metric.observe([3.0]).rows)
    assert metric.buckets.read()[2].shape == (ROWS, 0)
    assert metric.buckets.nbytes < other.buckets.nbytes


@pytest.mark.usefixtures("kernels")
def test_a_row_that_does_not_exist_is_an_error():
    """Not memory of somebody else."""
    metric = Metric()
    metric.table.set(0, ROWS)
    with pytest.raises(ValueError, match="series 4 of 4 rows"):
        metric.observe([1.0])


VALUES = st.one_of(st.floats(-1, 8), st.sampled_from([*BOUNDS, math.nan, math.inf]))
STEPS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.booleans(), st.integers(0, 4), VALUES), max_size=20),
        st.sampled_from([3.0, math.inf]),
        st.floats(0, 40),
    ),
    max_size=6,
)


@given(steps=STEPS, exemplars=st.booleans())
@settings(max_examples=200)
def test_native_and_reference_are_alike(steps, exemplars):
    """Whatever comes, in whatever order, the same is told and the same is kept."""
    told = []
    for kernels in (native, buckets_reference):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(buckets, "_kernels", kernels)
            metric, now, said = Metric(exemplars=exemplars), 100.0, []
            for rows, largest, later in steps:
                now += later
                mask, cells, values = ([row[at] for row in rows] for at in range(3))
                found = metric.observe(values, cells, mask=mask, largest=largest, now=now)
                for cell in found.unknown:
                    metric.table.set(cell, cell % ROWS)
                said.append([*found[:4], found.buckets.tolist(), found.rows.tolist()])
            said += [array.tolist() for array in (*metric.buckets.read(), metric.buckets.last())]
            told.append(said)
    np.testing.assert_equal(told[0], told[1])

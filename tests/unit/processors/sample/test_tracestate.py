"""The `ot` member of a tracestate, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.processors.sample.threshold import FULL, decoded
from otel_bridge.processors.sample.tracestate import Sampling, read, write

C = decoded(b"c")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (b"", Sampling(None, None)),
        (b"ot=th:c", Sampling(C, None)),
        (b"ot=th:0", Sampling(0, None)),
        (b"ot=rv:9b8233f7e3a151", Sampling(None, 0x9B8233F7E3A151)),
        (b"zz=x, ot=th:c;rv:d29d6a7215ced0;pn:abc ,a=b", Sampling(C, 0xD29D6A7215CED0)),
        (b"ot=p:8;r:62", Sampling(None, None)),
        (b"ot=th:", Sampling(None, None)),
        (b"ot=th:xyz", Sampling(None, None)),
        (b"ot=rv:123", Sampling(None, None)),
        (b"ot=th:c;", Sampling(None, None)),
        (b"ot=;th:c", Sampling(None, None)),
        (b"ot=TH:c", Sampling(None, None)),
        (b"ot", Sampling(None, None)),
        (b"ot=th:c;x:" + b"a" * 250, Sampling(None, None)),
        (b"\xff\xfe,ot=th:c", Sampling(C, None)),
    ],
)
def test_what_a_tracestate_says(state, expected):
    """Nothing, where it is not written as the specification has it."""
    assert read(state) == expected


@pytest.mark.parametrize(
    ("state", "threshold", "expected"),
    [
        (b"", C, b"ot=th:c"),
        (b"", None, b""),
        (b"a=1,b=2", 0, b"ot=th:0,a=1,b=2"),
        # What was changed stands first; other members keep their order and their bytes.
        (b"zz=x , ot=th:8;rv:d29d6a7215ced0;pn:abc,a=b", C, b"ot=rv:d29d6a7215ced0;th:c;pn:abc,zz=x,a=b"),
        (b"ot=th:8", None, b""),
        (b"ot=th:8;pn:abc,a=b", None, b"ot=pn:abc,a=b"),
        # An `ot` that says nothing is replaced.
        (b"ot=?,a=b", C, b"ot=th:c,a=b"),
    ],
)
def test_another_threshold(state, threshold, expected):
    """The rest stays."""
    assert write(state, threshold) == expected


def test_a_member_stays_within_its_limit():
    """256 characters for `ot`: what others put there gives way."""
    state = b"ot=x:" + b"a" * 250 + b",k=v"
    out = write(state, C)
    assert out == b"ot=th:c,k=v"


@given(state=st.binary(max_size=700), threshold=st.integers(0, FULL - 1))
def test_what_was_written_is_read(state, threshold):
    """From any bytes; and writing the same again changes nothing."""
    out = write(state, threshold)
    assert read(out).threshold == threshold
    assert read(out).randomness == read(state).randomness
    assert write(out, threshold) == out

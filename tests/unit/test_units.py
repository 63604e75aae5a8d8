"""Quantities as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge.units import Endpoint, parse_byte_size, parse_duration, parse_endpoint


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5),
        ("200ms", 0.2),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("0", 0),
        (3, 3),
        (0.25, 0.25),
        ("10us", 1e-5),
    ],
)
def test_durations_read_like_gos(text, seconds):
    """Numbers are seconds; texts are Go's."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "bad", ["", "5", "5 s", "-1s", "1h garbage", True, None, -1, math.inf, math.nan, [], "1sm"]
)
def test_what_is_no_duration_is_refused(bad):
    """No guessing: a bare number in quotes has no unit."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(bad)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (65536, 65536),
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("500kB", 500_000),
        ("12", 12),
        ("7 B", 7),
        ("1Ti", 1 << 40),
    ],
)
def test_sizes_know_binary_from_decimal(text, size):
    """Ki is 1024, k is 1000."""
    assert parse_byte_size(text) == size


@pytest.mark.parametrize("bad", ["", "MiB", "-5", -5, True, 1.5, "64 MiBs", None])
def test_what_is_no_size_is_refused(bad):
    """A fraction of a byte is a mistake, not a rounding."""
    with pytest.raises(ValueError, match="size"):
        parse_byte_size(bad)


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:4317", "127.0.0.1", 4317, True),
        ("localhost:0", "localhost", 0, True),
        ("[::1]:4318", "::1", 4318, True),
        ("0.0.0.0:1", "0.0.0.0", 1, False),
        ("collector.svc:4317", "collector.svc", 4317, False),
    ],
)
def test_endpoints(text, host, port, loopback):
    """Split, judged, and written back as they came."""
    endpoint = parse_endpoint(text)
    assert (endpoint, endpoint.loopback, str(endpoint)) == (Endpoint(host, port), loopback, text)


@pytest.mark.parametrize(
    "bad", ["4317", ":4317", "host:", "host:65536", "::1:4317", "http://h:1", "h:٣", 4317, None]
)
def test_what_is_no_endpoint_is_refused(bad):
    """URLs and bare IPv6 addresses are the usual mistakes; each gets its own words."""
    with pytest.raises(ValueError, match=r"endpoint|IPv6"):
        parse_endpoint(bad)


@given(st.text(max_size=20))
@pytest.mark.parametrize("parse", [parse_duration, parse_byte_size, parse_endpoint])
def test_any_text_is_read_or_refused(parse, text):
    """Nothing but ValueError ever comes out of a bad text."""
    try:
        parse(text)
    except ValueError:
        return
    assert text

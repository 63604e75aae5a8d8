"""What a user can set, and what is refused."""

from __future__ import annotations

import mmap

import pytest
from pydantic import ValidationError

from otel_bridge.kernel.config import FieldConfig, FunctionConfig, KernelConfig


def test_the_defaults_stand():
    """Thresholds as the documentation has them."""
    config = KernelConfig()
    assert config.mode == "auto"
    assert config.probes.sched.run_queue_threshold == 0.01
    assert config.probes.sched.off_cpu_threshold == 0.05


@pytest.mark.parametrize("size", [0, 1000, mmap.PAGESIZE - 1, 3 * mmap.PAGESIZE, "100kB"])
def test_a_ring_that_the_kernel_would_refuse_is_refused_before(size):
    """A power of two, at least a page."""
    with pytest.raises(ValidationError, match="power of two"):
        KernelConfig.model_validate({"probes": {"tcp": {"ring_size": size}}})


def test_sizes_and_durations_are_written_as_people_do():
    """Units and all."""
    config = KernelConfig.model_validate(
        {"probes": {"block": {"ring_size": "1MiB", "latency_threshold": "5ms"}}}
    )
    assert config.probes.block.ring_size == 1 << 20
    assert config.probes.block.latency_threshold == pytest.approx(0.005)


def test_encrypted_requests_are_not_looked_for_without_plain_ones():
    """Their connections are known through them; by default only the cheap ones are looked for."""
    assert KernelConfig().probes.requests.wanted
    assert not KernelConfig().probes.tls_requests.wanted
    probes = {"requests": {"enabled": False}, "tls_requests": {"enabled": True}}
    with pytest.raises(ValidationError, match=r"tls_requests finds .* enable it too"):
        KernelConfig.model_validate({"probes": probes})


def test_unknown_keys_are_refused():
    """Misspelt probes would be silently on."""
    with pytest.raises(ValidationError, match="extra_forbidden"):
        KernelConfig.model_validate({"probes": {"tpc": {"enabled": False}}})


FIELD = {"argument": 1, "type": "i64"}


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            {"fields": {"a": {**FIELD, "less": "b"}, "b": FIELD}},
            "`a` refers to 'b', which is no earlier field; before it is none",
        ),
        (
            {"fields": {"b": FIELD, "c": FIELD, "a": {**FIELD, "times": ["b", "d"]}}},
            "`a` refers to 'd', which is no earlier field; before it are b, c",
        ),
        ({"fields": {"a": {**FIELD, "plus": "a"}}}, "`a` refers to 'a', which is no earlier field"),
        ({"fields": {"a": {**FIELD, "times": 8}}}, r"times(.|\n)*valid string"),
        (
            {"fields": {"a": {**FIELD, "per": 2}, "b": {**FIELD, "index": {"field": "a", "times": 8}}}},
            "`a` is computed after the kernel: `index`, `gives` and `takes` need a field without",
        ),
        (
            {"fields": {"a": {**FIELD, "per": 2}}, "takes": {"group": "slot", "field": "a"}},
            "`a` is computed after the kernel",
        ),
        ({"fields": dict.fromkeys("abcdefghi", FIELD)}, "at most 8 items"),
        ({"fields": {"a": {**FIELD, "index": {"field": "a", "times": 8}}}}, "no earlier field"),
        ({"fields": {"a": {**FIELD, "falls": True}}}, "needs latency: true"),
        ({"fields": {"a": {**FIELD, "at": [1, 2, 3, 4]}}}, "at most 3 items"),
        ({"fields": {"a": {**FIELD, "per": 0}}}, "greater than or equal to 1"),
        ({"begins": "4"}, "should match pattern"),
        ({"symbol": "", "offset": 8, "begins": "48"}, "named by its symbol"),
    ],
)
def test_fields_that_cannot_be_told_are_refused(function, problem):
    """Each with what is wrong about it."""
    whole = {"name": "f", "library": "f", "symbol": "f", **function}
    with pytest.raises(ValidationError, match=problem):
        FunctionConfig.model_validate(whole)


def test_one_of_several_needs_no_list():
    """A step, a factor."""
    assert FieldConfig.model_validate({**FIELD, "at": 8}).at == (8,)
    assert FieldConfig.model_validate({**FIELD, "at": [8, 0]}).at == (8, 0)
    assert FieldConfig.model_validate(FIELD).at == ()
    assert FieldConfig.model_validate({**FIELD, "times": "layers"}).times == ("layers",)

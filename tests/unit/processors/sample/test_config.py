"""What can be said about sampling, and what is refused."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from otel_bridge.errors import ConfigError
from otel_bridge.processors.sample.config import SampleConfig
from otel_bridge.settings import Settings, load


def test_off_unless_switched_on():
    """Nothing is dropped that nobody asked to drop."""
    assert not Settings().processors.sample.enabled


def test_an_environment_inherits():
    """What it leaves out is as in `rate`, and only that."""
    config = SampleConfig.model_validate(
        {
            "rate": {"baseline": 0.2, "hold": "30s"},
            "environments": {"production": {"baseline": 0.02}, "staging": {"curve": "fixed", "hold": 5}},
        }
    )
    production, staging = config.environments["production"], config.environments["staging"]
    assert (production.baseline, production.hold, production.curve) == (0.02, 30.0, "traffic")
    assert (staging.baseline, staging.hold, staging.curve) == (0.2, 5.0, "fixed")


def test_the_defaults_are_those_of_the_requirements():
    """A5."""
    rate = SampleConfig().rate
    assert (rate.baseline, rate.minimum, rate.surge, rate.rise, rate.window) == (0.05, 0.01, 0.10, 0.30, 10.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": {"baseline": 0}}, "greater than 0"),
        ({"rate": {"baseline": 1.5}}, "less than or equal to 1"),
        ({"rate": {"window": "500ms"}}, "greater than or equal to 1"),
        ({"rate": {"inflection": 1}}, "greater than 1"),
        ({"rate": "fast"}, "valid dictionary"),
        ({"environments": {"production": {"baselin": 0.5}}}, "Extra inputs"),
        ({"environments": {"production": 0.5}}, "valid dictionary"),
        ({"environments": {"other": {}}}, "set rate instead"),
        ({"environments": ["production"]}, "valid dictionary"),
        ({"keep": {"wait": 0}}, "greater than 0"),
        ({"hold": "ram"}, "'disk', 'sender' or 'memory'"),
        ({"max_waiting": 10}, "greater than or equal to 1048576"),
    ],
)
def test_what_is_refused(given, message):
    """With what is allowed."""
    with pytest.raises(ValidationError, match=message):
        SampleConfig.model_validate(given)


def test_waiting_on_disk_needs_a_disk():
    """Unless nothing waits."""
    with pytest.raises(ConfigError, match="storage is null"):
        load(overrides=["processors.sample.enabled=true", "storage=null"], environment={})
    load(
        overrides=["processors.sample.enabled=true", "processors.sample.keep=null", "storage=null"],
        environment={},
    )

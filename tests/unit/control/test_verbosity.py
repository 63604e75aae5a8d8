"""More traces and more log lines while a breaker is not closed, held to what every action is held to."""

from __future__ import annotations

import pytest
import structlog
from pydantic import ValidationError
from structlog.testing import CapturingLoggerFactory

from otel_bridge import catalog
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.control import Control
from otel_bridge.telemetry import Telemetry, set_log_level
from otel_bridge.testing import FakeClock
from otel_bridge.verbosity import Verbosity
from tests.support.control import calls
from tests.support.sampling import until_idle

KEY = "llama/8b"
MORE = {"targets": ["llama/*"], "sampling_rate": 0.5, "log_level": "debug"}


class Telling:
    """Control with one such action, on a fake clock, and without listeners."""

    def __init__(self, file=None, **action) -> None:
        self.verbosity = Verbosity("info", highest_rate=0.5)
        self.clock = FakeClock()
        self.telemetry = Telemetry()
        config = {
            "enabled": True,
            "state": {"file": str(file) if file else None},
            "operators": {"socket": None},
            "decisions": {"http": {"enabled": False}},
            "actions": {"verbosity": {"more": {**MORE, **action}}},
        }
        self.control = Control(
            ControlConfig.model_validate(config), self.telemetry, self.clock, self.verbosity
        )

    async def __aenter__(self):
        await self.control.start()
        return self

    async def __aexit__(self, *_exc):
        await self.control.stop(1)

    async def slow(self, key=KEY) -> None:
        """Calls that trip."""
        self.control.sources.take_calls(key, calls(self.clock, *[3.0] * 5), 1)
        await until_idle()

    async def pass_time(self, seconds) -> None:
        """And let actions follow."""
        await self.clock.advance(seconds)
        self.control.board.advance()
        await until_idle()

    def done(self) -> list[tuple[str, str]]:
        """What the audit log says of the action, oldest first."""
        entries = self.control.store.history(None, 100)
        return [(one.cause, one.reason) for one in reversed(entries) if one.actor == "more"]


@pytest.fixture
def logged():
    """The levels of which a logger writes lines, at each call."""
    factory = CapturingLoggerFactory()
    structlog.configure(logger_factory=factory)
    set_log_level("info")

    def levels() -> set[str]:
        factory.logger.calls.clear()
        logger = structlog.get_logger("test")
        logger.debug("a line")
        logger.info("a line")
        return {call.method_name for call in factory.logger.calls}

    yield levels
    structlog.reset_defaults()


async def test_from_the_trip_until_it_is_closed(logged):
    """Half-open as well, since probes are what one wants to see; each step is audited."""
    async with Telling() as telling:
        assert logged() == {"info"}
        await telling.slow()
        assert telling.verbosity.sampling_rate == 0.5
        assert logged() == {"debug", "info"}
        await telling.pass_time(60)
        assert telling.verbosity.sampling_rate == 0.5
        await telling.pass_time(5)
        telling.control.sources.take_calls(KEY, calls(telling.clock, *[0.1] * 5), 1)
        await until_idle()
        assert telling.verbosity.sampling_rate == 0
        assert logged() == {"info"}
        assert telling.done() == [
            ("done", "closed to open"),
            ("done", "open to half_open"),
            ("done", "half_open to closed"),
        ]
        assert telling.telemetry.value(catalog.CONTROL_ACTIONS, action="more", result="done") == 3


async def test_as_long_as_any_of_several_is_open(logged):
    """The last one that closes ends it."""
    async with Telling() as telling:
        await telling.slow("llama/8b")
        await telling.slow("llama/70b")
        for key, left in (("llama/8b", 0.5), ("llama/70b", 0.0)):
            breaker = telling.control.board.find(key)
            telling.control.board.operate(
                breaker, lambda record, now: type(record)(since=now), "alice", "mended"
            )
            await until_idle()
            assert telling.verbosity.sampling_rate == left


async def test_a_dry_run_only_says_so(logged):
    """Nothing is raised, nor counted on by sampling."""
    async with Telling(dry_run=True) as telling:
        await telling.slow()
        assert telling.verbosity.sampling_rate == 0
        assert logged() == {"info"}
        assert telling.done() == [("dry_run", "closed to open")]
        assert telling.control.config.actions.highest_sampling_rate == 0


async def test_only_allowed_targets(logged):
    """Others do not concern it."""
    async with Telling() as telling:
        await telling.slow("qwen/7b")
        assert (telling.verbosity.sampling_rate, telling.done()) == (0, [])


async def test_the_rate_limit(logged):
    """One trip a minute: the second is audited, and not followed."""
    async with Telling(rate_limit={"changes": 1, "interval": "1h"}) as telling:
        await telling.slow("llama/8b")
        await telling.slow("llama/70b")
        assert telling.done() == [("done", "closed to open"), ("limited", "closed to open")]


async def test_after_a_restart_it_is_raised_again(logged, tmp_path):
    """A breaker that was open is open."""
    async with Telling(tmp_path / "control.sqlite") as telling:
        await telling.slow()
    async with Telling(tmp_path / "control.sqlite") as telling:
        await until_idle()
        assert telling.verbosity.sampling_rate == 0.5


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ({"targets": ["*"]}, "would do nothing"),
        ({"sampling_rate": 0.5}, "targets"),
        ({"targets": ["*"], "sampling_rate": 0}, "greater than 0"),
        ({"targets": ["*"], "log_level": "loud"}, "debug"),
    ],
)
def test_bad_configuration(action, says):
    """Said when it is read."""
    with pytest.raises(ValidationError, match=says):
        ControlConfig.model_validate({"actions": {"verbosity": {"more": action}}})

"""What operators see and say, through the command that they type."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import threading
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pydantic import ValidationError

from otel_bridge.cli import main
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.operators import Operators
from otel_bridge.errors import StartError
from otel_bridge.telemetry import Telemetry
from tests.support.control import World
from tests.support.limits import Limited

KEY = "llama/8b"


class Bridge:
    """A world whose operators' socket is served in a thread, as a bridge of its own would."""

    def __init__(self, path: Any, *, limited: bool = False, **operators: Any) -> None:
        self.file = path / "bridge.yaml"
        control = {"operators": {"socket": str(path / "s"), **operators}}
        self.file.write_text(yaml.safe_dump({"control": control}))
        self.world = World(**control)
        self.limited = Limited({"per-user": {"by": ["user", "model"], "amount": 3}}) if limited else None
        limiter = self.limited.limiter if self.limited is not None else None
        self.server = Operators(self.world.config.operators, self.world.board, self._history, limiter)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._call(self.server.start())

    async def _history(self, target: str | None, limit: int) -> Any:
        return self.world.store.history(target, limit)

    def _call(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def close(self) -> None:
        self._call(self.server.stop(1))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, *words: str, code: int = 0, about: str = "breaker") -> str:
        """What the command prints."""
        done = CliRunner().invoke(main, [about, "-c", str(self.file), *words])
        assert done.exit_code == code, done.output
        return done.output

    def json(self, *words: str, about: str = "breaker") -> Any:
        """What it prints with --json; this process's log stands before it."""
        return json.loads(self.run(*words, "--json", about=about).splitlines()[-1])


@pytest.fixture
def bridge(tmp_path):
    found = Bridge(tmp_path)
    yield found
    found.close()


def why(*more: str) -> tuple[str, ...]:
    return ("--reason", "drill", "--name", "alice", *more)


def test_list_show_and_history(bridge):
    """For people and for scripts."""
    assert "No target" in bridge.run("list")
    bridge.world.calls(KEY, *[3.0] * 5)
    assert KEY in bridge.run("list")
    (listed,) = bridge.json("list")["breakers"]
    assert (listed["target"], listed["state"], listed["cause"]) == (KEY, "open", "slow_calls")
    assert bridge.json("show", KEY)["ends_in_seconds"] == 60
    (entry,) = bridge.json("history")["entries"]
    assert (entry["before"], entry["after"], entry["cause"]) == ("closed", "open", "slow_calls")
    assert "slow_calls" in bridge.run("history", KEY)


@pytest.mark.parametrize(
    ("words", "state", "mode"),
    [
        (("open", KEY), "open", "forced_open"),
        (("open", KEY, "--for", "10m"), "open", "auto"),
        (("close", KEY), "closed", "auto"),
        (("disable", KEY), "closed", "disabled"),
        (("observe", KEY), "closed", "observe"),
        (("auto", KEY), "closed", "auto"),
    ],
)
def test_orders(bridge, words, state, mode):
    """Each is done, and is in the audit log with a name and a reason."""
    answer = bridge.json(*words, *why())
    assert (answer["state"], answer["mode"]) == (state, mode)
    (entry,) = bridge.world.history(KEY)
    assert entry.reason == "drill"
    assert entry.actor.startswith("alice (")


def test_a_forced_open_has_a_lease(bridge):
    """Of an hour, said in the answer; `--for` sets another."""
    assert bridge.json("open", KEY, *why())["ends_in_seconds"] == 3600
    assert bridge.json("open", KEY, *why("--for", "90"))["ends_in_seconds"] == 90


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("open", KEY), 2, "--reason"),
        (("open", "a/b/c/d/e", *why()), 1, "up to 4 names"),
        (("open", KEY, *why("--for", "soon")), 2, "duration"),
        (("open", KEY, *why("--for", "0")), 1, "seconds"),
        (("show", "nobody"), 1, "no breaker"),
        (("open", KEY, "--reason", "", "--name", "a"), 1, "reason"),
        (("history", "--limit", "0"), 2, "limit"),
    ],
)
def test_orders_that_cannot_be(bridge, words, code, said):
    """With what was found and what mends it."""
    assert said in bridge.run(*words, code=code)
    assert not bridge.world.board.breakers()


def test_limits_are_listed(tmp_path):
    """The emptiest buckets first, of each limit as many as asked for; users as digests."""
    found = Bridge(tmp_path, limited=True)
    try:
        for user, times in (("alice", 1), ("bob", 3), ("carol", 2)):
            found.limited.passes(times, user=user, model="\x1b[31mred")
        answer = found.json("list", "--buckets", "2", about="limits")
        (limit,) = answer["limits"]
        assert (limit["name"], limit["unit"], limit["amount"], limit["burst"]) == (
            "per-user",
            "requests",
            3,
            3,
        )
        assert limit["buckets"] == 3
        assert [bucket["level"] for bucket in limit["emptiest"]] == [0, 1]
        assert answer["degraded"] is False
        text = found.run("list", about="limits")
        assert "3 requests in 60 s" in text
        assert "\x1b" not in text
        assert "alice" not in text
        found.run("list", "--buckets", "0", about="limits", code=2)
    finally:
        found.close()


def test_without_limits_there_is_nothing_to_list(bridge):
    """And it is said what would make them."""
    assert bridge.json("list", about="limits")["limits"] == []
    assert "control.limits.rules" in bridge.run("list", about="limits")


def test_texts_of_strangers_do_not_steer_the_terminal(bridge):
    """A target, or an alert's text, may be anything."""
    from otel_bridge.control import machine

    breaker = bridge.world.board.obtain(KEY)
    reason = "\x1b[2J[bold]x[/]\r"
    bridge.world.board.operate(breaker, breaker.step(machine.open_for, 60.0, reason), "m\x07", reason)
    for words in (("list",), ("show", KEY), ("history",)):
        shown = bridge.run(*words)
        assert not set("\x1b\x07\r") & set(shown)
        assert "[bold]x" in shown.replace("\n", "")


def test_nobody_answers(tmp_path):
    """The message names the socket, and what to look at."""
    file = tmp_path / "bridge.yaml"
    file.write_text(yaml.safe_dump({"control": {"operators": {"socket": str(tmp_path / "none")}}}))
    done = CliRunner().invoke(main, ["breaker", "-c", str(file), "list"])
    assert done.exit_code == 1
    assert "control.enabled" in done.output
    assert str(tmp_path / "none") in done.output


def test_the_socket_is_its_owner_s_alone(bridge, tmp_path):
    """Who may open it may command."""
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


async def operators(path: Any, **config: Any) -> Operators:
    found = ControlConfig.model_validate({"operators": {"socket": str(path), **config}})
    world = World()

    async def history(_target: str | None, _limit: int) -> list[Any]:
        return []

    return Operators(found.operators, world.board, history)


async def test_a_socket_left_by_a_dead_bridge_is_taken(tmp_path):
    """A living one's, or a file, is not."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    first = await operators(tmp_path / "s")
    await first.start()
    second = await operators(tmp_path / "s")
    with pytest.raises(StartError, match="another bridge"):
        await second.start()
    await first.stop(1)
    (tmp_path / "f").write_text("mine")
    third = await operators(tmp_path / "f")
    with pytest.raises(StartError, match="no socket"):
        await third.start()
    assert (tmp_path / "f").read_text() == "mine"


async def test_a_path_too_long_for_a_socket(tmp_path):
    """Said before the system says something else."""
    with pytest.raises(StartError, match="107 bytes"):
        await (await operators(tmp_path / ("x" * 120))).start()


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"endpoint": "0.0.0.0:9468", "auth": {"bearer_tokens": ["x"]}}, "loopback"),
        ({"endpoint": "127.0.0.1:9468"}, "needs operators.auth"),
    ],
)
def test_a_port_for_operators_is_guarded(config, match):
    """Any local user reaches a port."""
    with pytest.raises(ValidationError, match=match):
        ControlConfig.model_validate({"operators": config})


def test_over_a_port_with_a_token(tmp_path):
    """Where a socket does not do."""
    path = tmp_path / "d"
    path.mkdir()
    bridge = Bridge(path, socket=None, endpoint="127.0.0.1:0", auth={"bearer_tokens": ["right"]})
    try:
        for token, code in (("right", 0), ("wrong", 1)):
            config = {
                "socket": None,
                "endpoint": f"127.0.0.1:{bridge.server.port}",
                "auth": {"bearer_tokens": [token]},
            }
            bridge.file.write_text(yaml.safe_dump({"control": {"operators": config}}))
            bridge.run("list", code=code)
    finally:
        bridge.close()


def test_metrics_exist_before_anything_happened():
    """So that increase() sees the first step."""
    world = World()
    names = {sample.name for metric in world.telemetry.registry.collect() for sample in metric.samples}
    assert "otel_bridge_control_leases_ended_total" in names
    assert isinstance(world.telemetry, Telemetry)

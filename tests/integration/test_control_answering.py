"""The decision API in a process of its own: it answers as the bridge would, and lives and ends with it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from otel_bridge import catalog
from otel_bridge.contracts import SystemClock
from otel_bridge.control import machine
from otel_bridge.control.breaker import Calls
from otel_bridge.control.config import ControlConfig
from otel_bridge.control.control import Control
from otel_bridge.errors import StartError
from otel_bridge.telemetry import Telemetry
from tests.support.processes import ROOT, eventually, free_port

TRACE = "0af7651916cd43dd8448eb211c80319c"
FALLBACK = {"status": 503, "content_type": "text/plain", "body": "try the small one"}


class Asked:
    """A bridge's control part with its answering process, and who asks it."""

    def __init__(self, control: Control, telemetry: Telemetry, session: aiohttp.ClientSession) -> None:
        self.control = control
        self.telemetry = telemetry
        self.session = session

    async def ask(self, path: str, method: str = "GET", **options) -> tuple[int, dict[str, str], bytes]:
        url = f"http://127.0.0.1:{self.control.http.port}{path}"
        async with self.session.request(method, url, **options) as answer:
            return answer.status, dict(answer.headers), await answer.read()

    def operate(self, key: str, function, *args) -> None:
        board = self.control.board
        breaker = board.obtain(key)
        board.operate(breaker, breaker.step(function, *args), "tester", "test")

    async def counted(self, result: str, count: int, interface: str = "nginx") -> None:
        """Wait until so many answers of a kind are in the bridge's metrics."""

        def value() -> float:
            return self.telemetry.value(catalog.CONTROL_DECISIONS, interface=interface, result=result)

        await until(lambda: value() >= count)
        assert value() == count


async def until(check, seconds: float = 60.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(seconds):
        while not check():  # noqa: ASYNC110 (nothing tells of it)
            await asyncio.sleep(0.02)


@asynccontextmanager
async def asked(**config):
    """Control with `process: own`."""
    http = {"endpoint": "127.0.0.1:0", "process": "own", **config.pop("http", {})}
    found = ControlConfig.model_validate(
        {
            "enabled": True,
            "state": {"file": None},
            "operators": {"socket": None},
            "decisions": {"http": http, **config.pop("decisions", {})},
            **config,
        }
    )
    telemetry = Telemetry()
    control = Control(found, telemetry, SystemClock())
    await control.start()
    try:
        async with aiohttp.ClientSession() as session:
            yield Asked(control, telemetry, session)
    finally:
        await control.stop(5.0)


async def test_it_answers_as_the_bridge_would():
    """Closed, open with its lease and headers, half-open by permits of the bridge, closed again."""
    policies = [{"open_time": "60s", "half_open": {"probes": 2}}]
    async with asked(policies=policies) as world:
        assert (await world.ask("/v1/nginx?service=llama"))[0] == 204
        world.operate("llama", machine.open_for, 60.0, "drill")
        status, headers, _ = await world.ask("/v1/nginx?service=llama&model=8b")
        assert status == 403
        assert headers["X-Otel-Bridge-State"] == "open"
        assert 59 <= int(headers["Retry-After"]) <= 73
        assert (await world.ask("/v1/nginx?service=qwen"))[0] == 204
        status, _, body = await world.ask("/v1/decision", "POST", json={"service": "llama"})
        assert status == 429
        assert json.loads(body)["reason"] == "drill"

        world.operate("llama", machine.force_open, 60.0, "drill")
        world.operate("llama", machine.decide_by_itself, machine.Mode.AUTO, "drill")
        statuses = [
            (await world.ask(f"/v1/nginx?service=llama&trace_id={number:032x}"))[0] for number in range(1, 7)
        ]
        assert statuses == [204, 204, 403, 403, 403, 403]
        assert (await world.ask(f"/v1/nginx?service=llama&trace_id={1:032x}"))[0] == 204
        record = world.control.board.find("llama").record
        assert set(record.permits) == {f"{number:032x}" for number in (1, 2)}

        calls = Calls(
            np.full(2, 0.1),
            np.zeros(2, bool),
            np.zeros(2, bool),
            np.full(2, SystemClock().time_ns(), "<u8"),
            np.array([bytes.fromhex(f"{number:032x}") for number in (1, 2)], "V16"),
        )
        world.control.sources.take_calls("llama", calls, 1)
        assert (await world.ask("/v1/nginx?service=llama"))[0] == 204
        await world.counted("allowed", 3)
        await world.counted("probe", 3)
        await world.counted("refused", 5)
        await world.counted("refused", 1, "json")


async def test_an_open_ends_by_itself():
    """Its end is known there as well: the first question after it is a probe."""
    async with asked() as world:
        world.operate("llama", machine.open_for, 0.3, "drill")
        assert (await world.ask("/v1/nginx?service=llama"))[0] == 403
        async with asyncio.timeout(30):
            answer = await world.ask(f"/v1/nginx?service=llama&trace_id={TRACE}")
            while answer[0] != 204:
                answer = await world.ask(f"/v1/nginx?service=llama&trace_id={TRACE}")
        assert answer[1]["X-Otel-Bridge-Probe"] == TRACE


async def test_what_only_the_bridge_knows_is_asked_of_it():
    """Rate limits, strategies, fallbacks, what is not served, what is malformed: the same answers."""
    limits = {"rules": {"all": {"by": ["service"], "amount": 2, "per": "1h"}}}
    async with asked(
        limits=limits,
        strategies={"enabled": True},
        policies=[{"fallback": "small"}],
        decisions={"fallbacks": {"small": FALLBACK}},
    ) as world:
        answers = [await world.ask("/v1/nginx?service=llama") for _ in range(3)]
        assert [status for status, _, _ in answers] == [204, 204, 403]
        assert answers[2][1]["X-Otel-Bridge-Limit"] == "all"
        assert answers[0][1]["X-Otel-Bridge-Strategy"] == "production"
        assert json.loads((await world.ask(f"/v1/strategy?trace_id={TRACE}"))[2])["trace_id"] == TRACE
        world.operate("qwen", machine.open_for, 60.0, "drill")
        status, headers, body = await world.ask("/v1/forward-auth?service=qwen")
        assert (status, headers["Content-Type"], body) == (503, "text/plain", b"try the small one")
        assert (await world.ask("/v1/nowhere"))[0] == 404
        assert (await world.ask("/v1/decision", "POST", data=b"{"))[0] == 400
        await world.counted("limited", 1)


async def test_what_a_breaker_refuses_is_not_handed_on_for_its_limits():
    """The bridge cannot be reached: what is held to a limit needs it, what is refused anyway does not."""
    async with asked(limits={"rules": {"all": {"by": ["service"], "amount": 2, "per": "1h"}}}) as world:
        world.operate("llama", machine.open_for, 60.0, "drill")
        (world.control.http._directory / "s").unlink()
        status, headers, _ = await world.ask("/v1/nginx?service=llama")
        assert status == 403
        assert "X-Otel-Bridge-Limit" not in headers
        assert (await world.ask("/v1/nginx?service=qwen"))[0] == 503
        await world.counted("refused", 1)


async def test_tokens_are_asked_for_at_its_door():
    """And not at the bridge's own, which nobody else reaches."""
    async with asked(http={"auth": {"bearer_tokens": ["right"]}}) as world:
        for path in ("/v1/nginx", "/v1/strategy", "/v1/nowhere"):
            assert (await world.ask(path))[0] == 401
        right = {"Authorization": "Bearer right"}
        assert (await world.ask("/v1/nginx", headers=right))[0] == 204
        assert (await world.ask("/v1/nowhere", headers=right))[0] == 404


async def test_it_is_started_again_at_the_same_port():
    """Killed, it knows on its return what is open; the restart is counted."""
    async with asked() as world:
        world.operate("llama", machine.open_for, 60.0, "drill")
        port, pid = world.control.http.port, world.control.http.pid
        os.kill(pid, signal.SIGKILL)
        await until(lambda: world.control.http.pid not in {pid, None})
        assert world.control.http.port == port
        assert (await world.ask("/v1/nginx?service=llama"))[0] == 403
        assert world.telemetry.value(catalog.CONTROL_ANSWERING_RESTARTS) == 1


async def test_a_taken_port_is_told():
    """As an error of the start, with the setting; nothing is left."""
    async with asked() as first:
        taken = f"127.0.0.1:{first.control.http.port}"
        with pytest.raises(StartError, match=r"control\.decisions\.http\.endpoint"):
            async with asked(http={"endpoint": taken}):
                pass


async def test_no_folder_is_told(monkeypatch):
    """With what mends it."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/proc/none")
    with pytest.raises(StartError, match="TMPDIR"):
        async with asked():
            pass


def test_it_ends_with_the_bridge(tmp_path):
    """Kill -9 of the bridge included."""
    port = free_port()
    program = (
        "import asyncio, sys\n"
        "from otel_bridge.telemetry import configure_logging\n"
        "from tests.integration.test_control_answering import asked\n"
        "configure_logging()\n"
        "async def main():\n"
        f"    async with asked(http={{'endpoint': '127.0.0.1:{port}'}}) as world:\n"
        "        print(world.control.http.pid, flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    log = (tmp_path / "log").open("w")
    with (
        log,
        subprocess.Popen(
            [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        ) as bridge,
    ):
        assert bridge.stdout is not None
        try:
            pid = int(bridge.stdout.readline())
        except BaseException:
            bridge.kill()
            raise
        os.kill(pid, signal.SIGTERM)  # meant for the bridge, which is told as well where it matters
        assert alive(pid)
        bridge.kill()
        bridge.wait()
        eventually("that it ended", lambda: not alive(pid))
    assert "Traceback" not in (tmp_path / "log").read_text(), "and without complaint"


def alive(pid: int) -> bool:
    """Whether a process is there, zombies not counted."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False

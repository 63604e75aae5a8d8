"""kill -9 of a real process, damage to what it left, a full disk, a directory that cannot be written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import grpc
import pytest

from otel_bridge import catalog
from otel_bridge.errors import RetryableError
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import trace_request
from tests.support.exporter_stubs import GrpcStub, exporting, send, until
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CHILD = ("-m", "tests.support.exporter_child")
QUICK = {"retry_on_failure": {"initial_interval": 0.05, "max_interval": 0.2}, "sending_queue": {"hold": 0.2}}


class Downstream(GrpcStub):
    """A stub that can be down without giving up its port."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False

        async def answer(payload, context):
            if self.down:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "down")
            return b""

        self.answer = answer


async def start_child(stub: GrpcStub, directory: Path, first: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *CHILD,
        str(stub.port),
        str(directory),
        str(first),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )


async def read_numbers(child: asyncio.subprocess.Process, into: set[int]) -> None:
    async for line in child.stdout:
        with contextlib.suppress(ValueError):
            into.add(int(line))


async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path):
    """Killed again and again, downstream up and down meanwhile; then counted."""
    rng = random.Random(23)
    acknowledged: set[int] = set()
    async with Downstream().serving() as stub:
        for round_ in range(6):
            stub.down = round_ % 2 == 0
            child = await start_child(stub, tmp_path, round_ * 1_000_000)
            reading = asyncio.create_task(read_numbers(child, acknowledged))
            before = len(acknowledged)
            wanted = rng.randrange(150, 600)
            await until(lambda b=before, w=wanted: len(acknowledged) >= b + w)
            if round_ == 3:
                stub.down = True
                await asyncio.sleep(0.3)
            child.send_signal(signal.SIGKILL)
            await child.wait()
            await reading
        stub.down = False
        child = await start_child(stub, tmp_path, -1)
        await until(lambda: not list((tmp_path / "otlp").glob("0*.sqlite")))
        child.send_signal(signal.SIGKILL)
        await child.wait()
        arrived = Counter(int(name) for name in stub.spans)
    assert len(acknowledged) > 1000
    assert not acknowledged - set(arrived)
    twice = sum(count - 1 for count in arrived.values())
    # In flight at a kill: one request of each client, and 10 joined ones (see the child's batch_size).
    assert twice <= 6 * (8 + 10 * 25)


async def fill(directory: Path, count: int) -> list[str]:
    """Leave `count` requests on disk by a process that is then killed."""
    acknowledged: set[int] = set()
    stub = Downstream()
    stub.down = True
    async with stub.serving():
        child = await start_child(stub, directory, 0)
        reading = asyncio.create_task(read_numbers(child, acknowledged))
        await until(lambda: len(acknowledged) >= count)
        child.send_signal(signal.SIGKILL)
        await child.wait()
        await reading
    return sorted(map(str, acknowledged))


def zero_the_middle(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(4096))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [zero_the_middle, cut_in_half, empty])
async def test_damage_after_a_kill(tmp_path, damage):
    """cases.md otlp-queue (b) to (d)."""
    acknowledged = await fill(tmp_path, 1000)
    segments = list((tmp_path / "otlp").glob("0*.sqlite"))
    damage(segments[0])
    telemetry = Telemetry()
    async with Downstream().serving() as stub:
        began = time.monotonic()
        configs = {"otlp": {"endpoint": f"127.0.0.1:{stub.port}", **QUICK}}
        async with exporting(configs, tmp_path, telemetry) as exporter:
            assert time.monotonic() - began < 10
            await send(exporter, trace_request([{"name": "fresh"}]))
            await until(lambda: not list((tmp_path / "otlp").glob("0*.sqlite")))
        arrived = set(stub.spans)
    lost = telemetry.value(catalog.EXPORTER_DROPPED, exporter="otlp", signal="traces", reason="damaged")
    missing = set(acknowledged) - arrived
    assert len(missing) <= lost <= len(missing) + 8, (
        "what was written and not yet acknowledged may be among them"
    )
    assert "fresh" in arrived
    assert len(list((tmp_path / "otlp" / "damaged").iterdir())) == 1
    if damage is zero_the_middle:
        assert 0 < lost <= 60
        assert acknowledged[0] in arrived
        assert acknowledged[-1] in arrived
    elif damage is cut_in_half:
        assert len(arrived) > 400


async def test_a_second_process_on_the_same_directory_goes_on_in_memory(tmp_path, capsys):
    async with Downstream().serving() as stub:
        configs = {"otlp": {"endpoint": f"127.0.0.1:{stub.port}", **QUICK}}
        child = await start_child(stub, tmp_path, -1)
        assert (await child.stdout.readline()).strip() == b"ready"
        async with exporting(configs, tmp_path) as exporter:
            await send(exporter, trace_request([{"name": "a"}]))
        said = capsys.readouterr().out
        assert f"in use by another process (pid {child.pid}); stop it (kill {child.pid})" in said
        child.send_signal(signal.SIGKILL)
        await child.wait()
        async with exporting(configs, tmp_path):
            assert "in use" not in capsys.readouterr().out, "a killed process holds no lock"
        assert stub.spans == ["a"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one MiB."""
    if os.geteuid():
        pytest.skip("mounting a tmpfs needs root; the limit on file sizes is tested without")
    path = tmp_path / "disk"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path], check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


async def test_disk_full(small_disk, capsys):
    """cases.md otlp-queue (f): a message, no hang; what was taken arrives, what was not is pushed back."""
    taken: list[str] = []
    refused = 0
    stub = Downstream()
    stub.down = True
    async with stub.serving():
        configs = {"otlp": {"endpoint": f"127.0.0.1:{stub.port}", **QUICK}}
        async with exporting(configs, small_disk) as exporter:
            for number in range(60):
                try:
                    await send(
                        exporter, trace_request([{"name": str(number), "attributes": {"body": "x" * 30_000}}])
                    )
                    taken.append(str(number))
                except RetryableError:
                    refused += 1
            assert 15 <= len(taken) <= 33
            assert refused == 60 - len(taken)
            said = capsys.readouterr().out
            assert f"df -h {small_disk / 'otlp'}" in said
            stub.down = False
            await until(lambda: len(stub.spans) >= len(taken))
    assert stub.spans == taken


@pytest.fixture
def read_only_disk(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    return small_disk


async def test_directory_that_cannot_be_written(read_only_disk, capsys):
    """cases.md otlp-queue (e)."""
    async with Downstream().serving() as stub:
        configs = {"otlp": {"endpoint": f"127.0.0.1:{stub.port}", **QUICK}}
        async with exporting(configs, read_only_disk) as exporter:
            await send(exporter, trace_request([{"name": "a"}]))
        assert stub.spans == ["a"]
    said = capsys.readouterr().out
    assert str(read_only_disk / "otlp") in said
    assert "mount -o remount,rw" in said

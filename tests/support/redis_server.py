"""A real Redis for tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="no redis-server: apt-get install redis-server"
)


class Redis:
    """A server of its own."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Serve, with nothing in it."""
        self.process = subprocess.Popen(
            [
                "redis-server",
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ],
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
        )
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        pytest.fail("redis-server did not start")

    def stop(self) -> None:
        """Kill it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def command(self, *words: str) -> str:
        """What Redis answers."""
        command = ["redis-cli", "-p", str(self.port), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

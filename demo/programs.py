"""Programs that the demo starts: ready when they say so, their output in a file, stopped in the end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

from demo.errors import DemoError
from demo.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

START_TIMEOUT = 60.0
STOP_TIMEOUT = 15.0


def free_ports(count: int) -> list[int]:
    """TCP ports of loopback that nobody listens on now, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Program:
    """A child process.

    Args:
        name: for people.
        command: what to run, from the root of the repository.
        log: the file that takes its output.
        environment: set in addition to our own.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                [str(word) for word in command],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for the demo; it stops its programs itself, in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def wait_until_ready(self, url: str) -> None:
        """Wait until `url` answers 200.

        Raises:
            DemoError: the program ended, or did not get ready in time.
        """
        end = time.monotonic() + START_TIMEOUT
        while time.monotonic() < end:
            self.check()
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise DemoError(
            f"{self.name} did not answer at {url} within {START_TIMEOUT:g} s",
            "its log says how far it came; a machine under load may need another try",
            self.log,
        )

    def check(self) -> None:
        """Raise DemoError if it has ended."""
        code = self._child.poll()
        if code is not None:
            raise DemoError(
                f"{self.name} ended by itself with exit code {code}", "its log says why", self.log
            )

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not obey."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                self._child.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()


@contextmanager
def running(program: Program) -> Iterator[Program]:
    """Stop the program when the block ends."""
    try:
        yield program
    finally:
        program.stop()

"""Programs of the bench in processes of their own, which end when their input does."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.join.causes import DISK_FILE, SPARSE_FILE
from tests.bench.join.peers import Addresses
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class Child:
    """A running one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def line(self) -> str:
        """What it says next.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return line.strip()

    def ask(self, line: str) -> Any:
        """Its answer to a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self.line())

    def end_input(self) -> None:
        """Tell it to end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, timeout: float = 30.0) -> None:
        """Until it has ended."""
        self._process.wait(timeout)


def child(module: str, *arguments: str) -> AbstractContextManager[Child]:
    """Run a module of this package."""
    return program(sys.executable, "-m", f"tests.bench.join.{module}", *arguments)


@contextmanager
def program(*command: str) -> Iterator[Child]:
    """Run a program."""
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


@contextmanager
def workplace() -> Iterator[Path]:
    """A directory on a disk."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as directory:
        yield Path(directory)


def make_files(directory: Path) -> tuple[Path, Path]:
    """The file to read from the disk, and the one that is read through the page cache."""
    disk_file, sparse_file = directory / "on-disk", directory / "sparse"
    with disk_file.open("wb") as file:
        file.write(random.randbytes(DISK_FILE))
        file.flush()
        os.fsync(file.fileno())
    with sparse_file.open("wb") as file:
        file.truncate(SPARSE_FILE)
    return disk_file, sparse_file


@contextmanager
def peers(directory: Path) -> Iterator[Addresses]:
    """The upstream and the TLS peer."""
    with child("peers", str(directory)) as process:
        yield Addresses(**json.loads(process.line()))


@contextmanager
def server(
    kind: str, bridge_port: int, addresses: Addresses, files: tuple[Path, Path]
) -> Iterator[tuple[Child, int]]:
    """A server under test, and its port."""
    arguments = (kind, str(bridge_port), json.dumps(vars(addresses)), *map(str, files))
    with child("servers", *arguments) as process:
        yield process, int(process.line())

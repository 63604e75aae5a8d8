"""Processes that take part in the bench: each says what happened, and when, in lines of JSON.

Times are CLOCK_MONOTONIC's nanoseconds, which are the same for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0


class BenchError(Exception):
    """Something did not happen that had to."""


def cores() -> tuple[int, int]:
    """The core of the engine and its clients, and that of the bridge; the same where there is one only."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[-1]


def say(**words: Any) -> None:
    """A line for the process that started this one."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


class Log:
    """What all processes said, in the order in which it was read."""

    def __init__(self) -> None:
        self._said: list[dict[str, Any]] = []
        self._more = threading.Condition()

    def add(self, words: dict[str, Any]) -> None:
        """Keep one line."""
        with self._more:
            self._said.append(words)
            self._more.notify_all()

    def all(self, since: int = 0) -> list[dict[str, Any]]:
        """What was said since a place in the log."""
        return self._said[since:]

    @property
    def end(self) -> int:
        """Where what comes now begins."""
        return len(self._said)

    def wait(
        self, what: str, since: int, wanted: Callable[[dict[str, Any]], bool], patience: float = PATIENCE
    ) -> dict[str, Any]:
        """The first line since a place in the log that is wanted.

        Raises:
            BenchError: there is none in time; it says `what`, and what was said last.
        """
        end = time.monotonic() + patience
        with self._more:
            while True:
                for words in self._said[since:]:
                    if wanted(words):
                        return words
                    since += 1
                if not self._more.wait(end - time.monotonic()):
                    last = "\n".join(map(str, self._said[-10:]))
                    raise BenchError(f"not within {patience:g} s: {what}; last was said:\n{last}")


class Child:
    """A process, on a core of its own choice, whose lines go to a log.

    Args:
        command: what to run.
        core: where.
        log: takes its lines.
        errors: the file that takes its standard error.
        environment: set in addition to ours.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        core: int,
        log: Log,
        errors: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with errors.open("ab") as out:
            self.process = subprocess.Popen(
                ["taskset", "-c", str(core), *map(str, command)],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
            )
        self._log = log
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def say(self, **words: Any) -> None:
        """Tell it to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._log.add(json.loads(line))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()

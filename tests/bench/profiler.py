"""Where a process spends its time: perf says which code is on a CPU, py-spy which Python holds the GIL."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

_RATE = 397
_SHOWN = 30


@contextmanager
def profiled(pid: int, directory: Path) -> Iterator[None]:
    """Sample a process while the block runs; `tables` reads what it leaves in the directory."""
    with ExitStack() as stack:
        for command in _commands(pid, directory):
            stack.enter_context(_running(command))
        yield


def tables(directory: Path) -> Iterator[Table]:
    """Shares of the samples, the largest first."""
    data = directory / "perf.data"
    if data.exists():
        for title, keys in (("CPU by thread and library", "comm,dso"), ("CPU by function", "dso,symbol")):
            yield _table(title, _perf_report(data, keys))
    stacks = directory / "stacks"
    if stacks.exists():
        own: Counter[str] = Counter()
        below: Counter[str] = Counter()
        for line in stacks.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            frames = stack.split(";")
            own[frames[-1]] += int(count)
            below.update(dict.fromkeys(map(_without_line, frames), int(count)))
        total = own.total()
        yield _table(f"GIL by line, {total} samples", _shares(own, total))
        yield _table("GIL by function, with what it calls", _shares(below, total))


def _commands(pid: int, directory: Path) -> Iterator[list[str]]:
    perf = shutil.which("perf")
    spy = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if perf is None and spy is None:
        raise SystemExit("--profile needs perf (apt-get install linux-perf) or py-spy (pip install py-spy)")
    # The two do not meet: py-spy stops the process to look at it, perf does not notice.
    if perf is not None:
        data = str(directory / "perf.data")
        yield [perf, "record", "-F", str(_RATE), "-g", "-p", str(pid), "-o", data]
    if spy is not None:
        options = ["--gil", "--format", "raw", "--rate", "100", "--duration", "3600"]
        yield [spy, "record", *options, "--output", str(directory / "stacks"), "--pid", str(pid)]


@contextmanager
def _running(command: list[str]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        ended = process.poll() is not None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        if ended:
            print(f"{command[0]} did not record: {said.strip()}", file=sys.stderr)


def _perf_report(data: Path, keys: str) -> Iterator[tuple[float, str]]:
    report = subprocess.run(
        ["perf", "report", "-i", str(data), "--no-children", "-g", "none", "--sort", keys, "--stdio", "-q"],
        capture_output=True,
        text=True,
        check=True,
    )
    for line in report.stdout.splitlines():
        share, _, what = line.strip().partition("%")
        if what:
            yield float(share), " ".join(what.split())


def _shares(counts: Counter[str], total: int) -> Iterator[tuple[float, str]]:
    for name, count in counts.most_common(_SHOWN):
        yield 100 * count / total, name


def _without_line(frame: str) -> str:
    name, bracket, place = frame.partition(" (")
    return f"{name}{bracket}{place.partition(':')[0].rstrip(')')}{')' if bracket else ''}"


def _table(title: str, rows: Iterator[tuple[float, str]]) -> Table:
    table = Table(title=title, box=None, padding=(0, 1, 0, 0), title_justify="left")
    table.add_column("%", justify="right")
    table.add_column("", overflow="fold")
    for _, (share, name) in zip(range(_SHOWN), rows, strict=False):
        table.add_row(f"{share:.1f}", name)
    return table

"""Where a process spends its time: py-spy's samples of Python and native frames, summed up."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

_RATE = 250
_SHOWN = 25


@contextmanager
def profiled(pid: int, output: Path) -> Iterator[None]:
    """Sample a process while the block runs; the stacks are in `output` afterwards, one a line.

    Raises:
        SystemExit: py-spy is not installed, or may not look into the process.
    """
    command = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    if command is None:
        raise SystemExit("--profile needs py-spy: pip install py-spy")
    sampling = subprocess.Popen(
        [
            *(command, "record", "--native", "--format", "raw", "--rate", str(_RATE)),
            *("--duration", "3600", "--output", str(output), "--pid", str(pid)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
    finally:
        sampling.send_signal(2)
        _, said = sampling.communicate(timeout=60)
    if not output.exists():
        raise SystemExit(f"py-spy made no profile (may it trace? try as root): {said.strip()}")


def tables(stacks: Path) -> list[Table]:
    """By function: its own time, and the time of everything below it."""
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()
    total = 0
    for line in stacks.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [_named(frame) for frame in stack.split(";")]
        own[frames[-1]] += int(count)
        below.update(dict.fromkeys(frames, int(count)))
        total += int(count)
    return [
        _table(title, counts, total)
        for title, counts in (("own time", own), ("with everything below", below))
    ]


def _named(frame: str) -> str:
    """A frame without its line number; what `Counter` is to put together."""
    name, bracket, place = frame.partition(" (")
    return f"{name}{bracket}{place.partition(':')[0].rstrip(')')}{')' if bracket else ''}"


def _table(title: str, counts: Counter[str], total: int) -> Table:
    table = Table(title=f"{title}, {total} samples", box=None, padding=(0, 1, 0, 0))
    table.add_column("%", justify="right")
    table.add_column("function", no_wrap=True)
    for name, count in counts.most_common(_SHOWN):
        table.add_row(f"{100 * count / total:.1f}", name)
    return table

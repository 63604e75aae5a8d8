"""The means: a network that loses packets, processes that hog CPUs, the kernel's own trace."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.cgroups import MissingControllerError, memory_controller

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACING = Path("/sys/kernel/tracing")
MTU = 1500
"""Of the loopback device: with its own 64 KiB an upload would be a packet or two."""


def lacking() -> str:
    """What this machine would need for the bench, with the command that mends it; empty when all is here."""
    if os.geteuid() != 0:
        return "needs root: sudo make bench-join"
    for command, package in (("ip", "iproute2"), ("nft", "nftables"), ("cc", "gcc")):
        if shutil.which(command) is None:
            return f"needs {command}: apt-get install {package}"
    if not (TRACING / "instances").exists():
        return "needs tracefs: mount -t tracefs tracefs /sys/kernel/tracing"
    try:
        memory_controller()
    except MissingControllerError as error:
        return str(error)
    return ""


def lose_packets(port: int, per_mille: int) -> None:
    """Lose packets to a port, in the input hook: the output hook would tell the sender."""
    rules = f"""
        table inet lossy {{
            chain input {{
                type filter hook input priority 0;
                tcp dport {port} numgen random mod 1000 < {per_mille} drop
            }}
        }}
    """
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """Processes that use a CPU each, as long as the block runs."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def two_places() -> Iterator[tuple[set[int], set[int]]]:
    """The last CPU, and the others, where this process and those it starts run; the same with one."""
    every = os.sched_getaffinity(0)
    one = {max(every)}
    others = every - one or one
    os.sched_setaffinity(0, others)
    try:
        yield one, others
    finally:
        os.sched_setaffinity(0, every)


def move(pid: int, cpus: set[int]) -> None:
    """Let the threads of a process, and those they start from now on, run on these CPUs alone."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(task.name), cpus)


def cpu_of(pid: int) -> float:
    """Seconds that all threads of a process have run so far, those that ended included."""
    # The process's CPU clock, as clock_getcpuclockid(3) makes its number.
    return time.clock_gettime_ns(~pid << 3 | 2) / 1e9


class ReclaimTrace:
    """The kernel's trace of reclaims: which threads had to reclaim memory, and when."""

    _LINE = re.compile(r"-(?P<tid>\d+) +\[\d+\] +\S+ +(?P<time>[\d.]+): mm_vmscan_\w+_reclaim_end:")
    _EVENTS = ("mm_vmscan_memcg_reclaim_end", "mm_vmscan_direct_reclaim_end")

    def __init__(self) -> None:
        self._instance = TRACING / "instances" / f"otel-bridge-bench-{os.getpid()}"
        self._instance.mkdir()
        (self._instance / "trace_clock").write_text("boot")
        (self._instance / "buffer_size_kb").write_text("8192")
        for name in self._EVENTS:
            (self._instance / "events" / "vmscan" / name / "enable").write_text("1")

    def read(self) -> list[tuple[int, int]]:
        """(thread, unix nanoseconds) of each end of a reclaim so far."""
        offset = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        text = (self._instance / "trace").read_text()
        return [
            (int(found["tid"]), round(float(found["time"]) * 1e9) + offset)
            for found in self._LINE.finditer(text)
        ]

    def close(self) -> None:
        """Stop it."""
        self._instance.rmdir()

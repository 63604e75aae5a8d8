"""A bridge whose probes are switched on and off while it runs.

python -m tests.bench.join.switched_bridge CONFIG

Prints its OTLP port, then does what each line of its input says and answers with a line of JSON: `on PID`
loads the default probes and waits until that process is followed, `timed PID` loads all there are and has
the kernel time them, `costs` tells what they took so far, `detach` lets go of their tracepoints and `attach`
takes them again, `off` unloads them.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from otel_bridge import catalog
from otel_bridge.contracts import SystemClock
from otel_bridge.kernel.config import KernelConfig
from otel_bridge.kernel.monitor import KernelMonitor
from otel_bridge.service import Service
from otel_bridge.settings import load
from otel_bridge.telemetry import configure_logging

if TYPE_CHECKING:
    from otel_bridge.kernel.loader import LoadedProbe

_PATIENCE = 20.0
_ALL_PROBES = {
    "tls_requests": {"enabled": True},
    # One field that is read from a register, as most are.
    "user": {
        "functions": [
            {
                "name": "bench.allocate",
                "library": "libcuda\\.so.*",
                "symbol": "cuMemAlloc_v2",
                "fields": {"bytes": {"argument": 2, "type": "u64"}},
            }
        ]
    },
}
"""Besides those that are on by default."""


class Switch:
    """The probes, on or off."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._monitor: KernelMonitor | None = None
        self._before: dict[str, int] = {}

    def on(self, pid: str, *, timed: bool = False) -> bool:
        """Load the probes."""
        probes = _ALL_PROBES if timed else {}
        config = KernelConfig.model_validate(
            {"mode": "required", "drop_privileges": False, "run_statistics": timed, "probes": probes}
        )
        monitor = KernelMonitor(config, self._service.pipeline, self._service.telemetry, SystemClock())
        monitor.open()
        self._monitor = monitor
        self._before = {name: self._handed_over(name) for name in monitor.costs()}
        self._service.pipeline.follow(monitor.complete_until)
        end = time.monotonic() + _PATIENCE
        while int(pid) not in monitor.followed:
            if time.monotonic() > end:
                raise TimeoutError(f"process {pid} is not followed after {_PATIENCE:g} s")
            time.sleep(0.02)
        return True

    def timed(self, pid: str) -> bool:
        """Load all probes, and have the kernel time them."""
        return self.on(pid, timed=True)

    def costs(self) -> dict[str, tuple[int, int, int]]:
        """By probe: nanoseconds and runs of its programs, and records that it has handed over."""
        assert self._monitor is not None
        return {
            name: (
                sum(nanoseconds for nanoseconds, _ in programs.values()),
                sum(runs for _, runs in programs.values()),
                self._handed_over(name) - self._before.get(name, 0),
            )
            for name, programs in self._monitor.costs().items()
        }

    def _handed_over(self, probe: str) -> int:
        events = self._service.telemetry.values(catalog.KERNEL_EVENTS)
        return sum(int(value) for labels, value in events if labels["probe"] == probe)

    def detach(self) -> bool:
        """Have no program run at a tracepoint."""
        for loaded in self._loaded():
            loaded.detach()
        return True

    def attach(self) -> bool:
        """Undo that, where it was done."""
        for loaded in self._loaded():
            if not loaded.links:
                loaded.attach()
        return True

    def _loaded(self) -> list[LoadedProbe]:
        assert self._monitor is not None
        assert self._monitor._loader is not None
        return list(self._monitor._loader.loaded.values())

    def off(self) -> bool:
        """Unload them."""
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None
        return True


async def serve(service: Service) -> None:
    """Obey until the input ends."""
    switch = Switch(service)
    await service.start()
    print(service.receiver.grpc_port, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, *arguments = line.split()
        print(json.dumps(await asyncio.to_thread(getattr(switch, word), *arguments)), flush=True)
    switch.off()
    await service.stop()


def main() -> None:
    """Start it."""
    configure_logging(level="error")
    asyncio.run(serve(Service(load(Path(sys.argv[1])))))


if __name__ == "__main__":
    main()

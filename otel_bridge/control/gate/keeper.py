"""All gates: finds the namespaces of their services, attaches, renews leases and counts.

Attaching takes capabilities that the bridge gives up once its probes are loaded; they are a thread's own, so
this thread is started before that, and keeps them for pods that come later.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.control.gate.attachment import ALLOCATIONS, KILLS, Attachment, sweep
from otel_bridge.control.gate.gate import COUNTED, KernelGate
from otel_bridge.control.gate.namespaces import Processes, find, libraries
from otel_bridge.errors import BridgeError
from otel_bridge.libbpf.library import Library

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.contracts import Clock
    from otel_bridge.control.actions.config import ActionsConfig
    from otel_bridge.control.gate.config import GateConfig
    from otel_bridge.control.gate.namespaces import Found, Namespace
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

_BEAT = 0.25
"""Seconds between two looks at the counters; a lease is renewed each third of it, at the latest."""
_FIRST_SCAN = 30.0
_LIBRARIES_PACE = 60.0
"""Seconds between two looks for libraries, once there is one: it means reading the maps of every process."""


class Keeper:
    """Keeps the gates of a configuration in the kernel.

    Args:
        config: all actions.
        telemetry: for metrics.
        clock: for time.
        on_kills: told of the target whose gate the kernel shut by itself, and why.
    """

    def __init__(
        self,
        config: ActionsConfig,
        telemetry: Telemetry,
        clock: Clock,
        on_kills: Callable[[str, str], None],
    ) -> None:
        self.gates = [KernelGate(name, found, clock) for name, found in config.gates.items()]
        self._config = config
        self._clock = clock
        self._on_kills = on_kills
        self._library: Library | None = None
        self._attached: dict[int, Attachment] = {}
        self._look_again: dict[tuple[str, int], float] = {}
        self._settled = False
        self._scanned = threading.Event()
        self._ending = threading.Event()
        self._changing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gates", daemon=True)
        self._connections = telemetry.counter(catalog.CONTROL_GATE_CONNECTIONS)
        self._trips = telemetry.counter(catalog.CONTROL_GATE_KERNEL_TRIPS)
        self._namespaces = telemetry.gauge(catalog.CONTROL_GATE_NAMESPACES)
        for gate in self.gates:
            self._trips.labels(gate.name)
            for result in COUNTED[:3]:
                self._connections.labels(gate.name, result)

    async def start(self) -> None:
        """Attach what can be, before anything trips; what cannot be yet is tried again. Again: nothing."""
        if self.gates and self._thread.ident is None:
            self._thread.start()
            await asyncio.to_thread(self._scanned.wait, _FIRST_SCAN)

    def settle(self) -> None:
        """The breakers are known: open what a bridge before had shut and none of them shuts now."""
        with self._changing:
            self._settled = True
            for gate in self.gates:
                gate.settle()
            for attached in self._attached.values():
                attached.drop_unclaimed()

    async def stop(self, _deadline: float) -> None:
        """Leave what is shut to the next bridge, or to the end of its lease; take the rest out."""
        if not self._thread.is_alive():
            return
        self._ending.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        due = renewed = self._clock.monotonic()
        pace = min((gate.config.lease for gate in self.gates), default=1.0) / 3
        while not self._ending.is_set():
            now = self._clock.monotonic()
            if now >= due:
                try:
                    self._scan()
                except (OSError, BridgeError):
                    log.exception("gates could not be looked after; they are again")
                self._scanned.set()
                due = self._clock.monotonic() + self._config.scan_interval
            if now - renewed >= pace:
                renewed = now
                for gate in self.gates:
                    gate.renew()
            self._count()
            self._ending.wait(min(_BEAT, pace))
        self._count()
        with self._changing:
            for inode in list(self._attached):
                attached = self._attached.pop(inode)
                if attached.shut:
                    attached.close()
                else:
                    attached.remove()

    def _scan(self) -> None:
        wanted: dict[int, Namespace] = {}
        by_gate: dict[str, Found] = {}
        processes = Processes()
        for gate in self.gates:
            found = by_gate[gate.name] = find(gate.config, processes)
            wanted |= found.namespaces
        with self._changing:
            for inode in self._attached.keys() - wanted.keys():
                self._detach(inode)
            if self._config.pins is not None and self._library is not None:
                sweep(self._library, self._config.pins)
            for gate in self.gates:
                self._follow(gate, by_gate[gate.name])
        self._watch_allocations(processes)

    def _watch_allocations(self, processes: Processes) -> None:
        """Find the libraries whose allocations are counted; what is new there is looked for less often."""
        for gate in self.gates:
            kills = gate.config.kills
            if kills is None or kills.allocations is None:
                continue
            for inode in gate.inodes:
                now = self._clock.monotonic()
                if now < self._look_again.get((gate.name, inode), 0.0):
                    continue
                found = libraries(inode, kills.allocations.library, processes)
                if found:
                    self._look_again[gate.name, inode] = now + _LIBRARIES_PACE
                try:
                    with self._changing:
                        self._attached[inode].watch_allocations(kills.allocations, found)
                except BridgeError as error:
                    self._look_again[gate.name, inode] = now + _LIBRARIES_PACE
                    log.warning("failed allocations are not counted", gate=gate.name, reason=str(error))

    def _detach(self, inode: int) -> None:
        self._count()
        for gate in self.gates:
            gate.detach(inode)
        self._attached.pop(inode).remove()
        for key in [key for key in self._look_again if key[1] == inode]:
            del self._look_again[key]
        log.info("a namespace is no longer guarded", namespace=inode)

    def _follow(self, gate: KernelGate, found: Found) -> None:
        for inode in gate.inodes - found.namespaces.keys():
            gate.detach(inode)
        problems = []
        for inode, namespace in found.namespaces.items():
            if inode in gate.inodes:
                continue
            try:
                attached = self._attach(gate.config, namespace)
                gate.attach(inode, attached.claim(gate.config.ports, gate.name), settle=self._settled)
            except (OSError, BridgeError) as error:
                problems.append(str(error))
                continue
            log.info(
                "a namespace is guarded",
                gate=gate.name,
                namespace=inode,
                mechanism=attached.mechanism,
                taken_over=attached.adopted,
            )
        self._namespaces.labels(gate.name).set(len(gate.inodes))
        missing = "; ".join(problems) or found.missing
        if missing and missing != gate.missing:
            log.warning("a gate does not hold", gate=gate.name, reason=missing)
        gate.missing = missing

    def _attach(self, config: GateConfig, namespace: Namespace) -> Attachment:
        attached = self._attached.get(namespace.inode)
        if attached is not None:
            if config.mechanism not in {"auto", attached.mechanism}:
                raise BridgeError(
                    f"mechanism {config.mechanism}, but another gate guards the same namespace by "
                    f"{attached.mechanism}: give both the same"
                )
            return attached
        if self._library is None:
            self._library = Library()
        kills = [gate.config.kills for gate in self.gates if gate.config.kills is not None]
        also = [KILLS] if kills else []
        if any(found.allocations is not None for found in kills):
            also.append(ALLOCATIONS)
        attached = Attachment(self._library, namespace, config.mechanism, self._config.pins, also)
        self._attached[namespace.inode] = attached
        if attached.others:
            log.warning(
                "other programs steer connections of this namespace; those they give to a socket are not "
                "refused: see overruled, or set mechanism: cgroup",
                namespace=namespace.inode,
                others=attached.others,
            )
        return attached

    def _count(self) -> None:
        for gate in self.gates:
            counts = gate.count()
            for result in COUNTED[:3]:
                self._connections.labels(gate.name, result).inc(counts[result])
            kills = gate.config.kills
            if counts["trips"] and kills is not None:
                self._trips.labels(gate.name).inc(counts["trips"])
                reason = (
                    f"{kills.kills} OOM kills{' or failed allocations' if kills.allocations else ''} within "
                    f"{kills.window:g} s; the kernel shut gate {gate.name}"
                )
                self._on_kills(kills.target, reason)
                # The breaker may be switched off, or only observe.
                gate.settle()

"""Kernel events as a component: probes loaded, processes followed, events read, and all undone at the end."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from otel_bridge import catalog
from otel_bridge.errors import BridgeError, StartError
from otel_bridge.events import KernelEvents
from otel_bridge.kernel import privileges, thread_context
from otel_bridge.kernel.accounts import Accounts, DeviceAccounts, TimeWaitAccounts
from otel_bridge.kernel.backend import BTF, LibbpfBackend, choose
from otel_bridge.kernel.bcc import BccBackend
from otel_bridge.kernel.clock import Alignment
from otel_bridge.kernel.config import ProbeConfig
from otel_bridge.kernel.discovery import Discovery
from otel_bridge.kernel.kernel_symbols import KernelSymbols
from otel_bridge.kernel.loader import Loader, NotHereError
from otel_bridge.kernel.mappings import MappingNews, MappingsError
from otel_bridge.kernel.obi_table import open_table
from otel_bridge.kernel.places import FunctionPlace
from otel_bridge.kernel.pressure import MemoryPressure
from otel_bridge.kernel.probes import PROBES, is_wanted, memory, process, tcp, user
from otel_bridge.kernel.reader import Intake, Reader, Ticker, Timer
from otel_bridge.kernel.records import BLOCK_DEVICE, BLOCK_TOTALS, U4, USER_PROBE
from otel_bridge.kernel.split import Split
from otel_bridge.kernel.stacks import StackNaming, Symbolizer
from otel_bridge.kernel.time_wait import read_time_wait
from otel_bridge.libbpf.library import LibbpfError, Library
from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from otel_bridge.contracts import Clock
    from otel_bridge.events import KernelEventSink
    from otel_bridge.kernel.backend import Backend
    from otel_bridge.kernel.config import KernelConfig, ProbesConfig, UserConfig
    from otel_bridge.kernel.discovery import MappedFile, Place
    from otel_bridge.kernel.loader import AttachedFile, LoadedProbe
    from otel_bridge.kernel.probes.base import Probe, Uprobe
    from otel_bridge.kernel.thread_context import ThreadContextLayout
    from otel_bridge.readings import ReadingSink
    from otel_bridge.telemetry import Telemetry

log = structlog.get_logger(__name__)

_SOON = 0.05
"""Seconds from one taking of sums to the next at the least, when somebody waits for it."""

_CLOCK_INTERVAL = 1.0
_COUNT_INTERVAL = 1.0
_NEED_PRIVILEGES = (
    "loading takes privileges that were given up after the start; restart the bridge, or keep them with "
    "kernel.drop_privileges: false"
)


@dataclass(frozen=True, slots=True)
class ProbeState:
    """Whether a probe works.

    Attributes:
        name: of the probe.
        loaded: it works.
        reason: why not, or what is missing from it; empty when all is well.
        needed: this machine has what it hangs on.
    """

    name: str
    loaded: bool
    reason: str = ""
    needed: bool = True


class ReloadError(BridgeError):
    """Parts of a configuration that are not in effect, one a line, each with the reason."""


class KernelMonitor:
    """Loads the probes that this machine lets load, and hands their events to a sink.

    Start it before the threads of other components: the capabilities it gives up are those of the thread that
    starts it, and of the threads started after it.
    """

    def __init__(
        self,
        config: KernelConfig,
        sink: KernelEventSink,
        telemetry: Telemetry,
        clock: Clock,
        *,
        on_lost: Callable[[str, int], None] = lambda _probe, _count: None,
        readings: Sequence[ReadingSink] = (),
    ) -> None:
        self._config = config
        self._readings = readings
        self._pressure: MemoryPressure | None = None
        self._on_lost = on_lost
        self._clock = clock
        self._telemetry = telemetry
        self._split = Split(sink)
        self._accounts = Accounts(telemetry, clock)
        self._device_accounts = DeviceAccounts(telemetry)
        self._time_wait_accounts = TimeWaitAccounts(telemetry)
        self._tells_time_wait = True
        self._loaded_gauge = telemetry.gauge(catalog.KERNEL_PROBE_LOADED)
        self._loader: Loader | None = None
        self._reader: Reader | None = None
        self._ticker: Ticker | None = None
        self._discovery: Discovery | None = None
        self._mapping_news: MappingNews | None = None
        self._stacks: StackNaming | None = None
        self._places: dict[str, list[Place]] = {}
        self._statistics_fd = -1
        # Held by whoever uses the loaded objects: they are closed when a probe is swapped.
        self._objects = threading.RLock()
        # Held from beginning to end by whoever changes which probes there are.
        self._changing = threading.Lock()
        self.states: dict[str, ProbeState] = {}
        self._complete_until = 0

    async def start(self) -> None:
        """Load and begin to read.

        Raises:
            StartError: with `mode: required`, a probe could not be loaded.
        """
        # In this thread, since capabilities are a thread's own; loading takes some hundred milliseconds.
        self.open()

    async def stop(self, deadline: float) -> None:  # noqa: ARG002 (reading what is left is bounded by the rings)
        """Hand on what was read last, then take the programs out of the kernel."""
        await asyncio.to_thread(self.close)

    def open(self) -> None:
        """`start`, for callers without a loop."""
        if self._config.mode == "off":
            return
        try:
            library = Library()
            self._backend = self._choose_backend(library)
        except BridgeError as error:
            self._give_up(str(error))
            return
        self._loader = Loader(library, self._backend, self._config)
        self._ask_obi(library)
        wanted = [probe for probe in PROBES if is_wanted(probe, self._config.probes)]
        self._backend.prepare(wanted)
        for probe in wanted:
            self._load(probe)
        broken = [state for state in self.states.values() if state.needed and not state.loaded]
        if broken and self._config.mode == "required":
            self.close()
            raise StartError("\n".join(f"probe {state.name}: {state.reason}" for state in broken))
        if self._loader.loaded:
            self._begin(library)

    def _choose_backend(self, library: Library) -> Backend:
        choice = choose(self._config, btf=BTF.exists())
        log.info("probes are loaded", backend=choice.name, reason=choice.reason)
        if choice.name == "bcc":
            return BccBackend(library, self._config.bcc)
        return LibbpfBackend(library)

    def _ask_obi(self, library: Library) -> None:
        assert self._loader is not None
        if not self._config.obi_table:
            return
        try:
            self._loader.use_obi_table(open_table(library, self._config.obi_table))
        except BridgeError as error:
            if self._config.mode == "required":
                self.close()
                raise StartError(str(error)) from error
            log.warning("what OBI says about threads is not used", reason=str(error))

    def _give_up(self, reason: str) -> None:
        self.states = {probe.name: ProbeState(probe.name, loaded=False, reason=reason) for probe in PROBES}
        if self._config.mode == "required":
            raise StartError(reason)
        log.warning("no kernel events", reason=reason)

    def _load(self, probe: Probe) -> None:
        assert self._loader is not None
        try:
            loaded = self._loader.load(probe)
        except NotHereError as error:
            self.states[probe.name] = ProbeState(probe.name, loaded=False, reason=str(error), needed=False)
            log.info("a probe is not needed", probe=probe.name, reason=str(error))
            return
        except BridgeError as error:
            self.states[probe.name] = ProbeState(probe.name, loaded=False, reason=str(error))
            self._loaded_gauge.labels(probe.name).set(0)
            log.warning("a probe is not loaded", probe=probe.name, reason=str(error))
            return
        missing = [
            f"without {program.gives}: tracepoint {program.tracepoint} needs Linux {program.since}"
            for program in loaded.missing
        ]
        limits = self._backend.limits(probe, self._config.probes)
        if limits:
            log.warning("a probe is loaded in part", probe=probe.name, reason=limits)
        reason = "; ".join([*missing, *([limits] if limits else [])])
        self.states[probe.name] = ProbeState(probe.name, loaded=True, reason=reason)
        self._loaded_gauge.labels(probe.name).set(1)

    def _begin(self, library: Library) -> None:
        assert self._loader is not None
        if self._config.run_statistics:
            self._statistics_fd = library.enable_stats()
        for name in self._loader.loaded:
            self._accounts.open(name, library.possible_cpus)
        self._alignment = Alignment()
        self._steps = 0
        self._intake = Intake(self._split, self._alignment, self._telemetry)
        self._reader = Reader(self._intake, self._alignment, interval=self._config.read_interval)
        self._taking = Timer(self._clock, self._config.sum_interval, self._take_all)
        self._ticker = Ticker(
            [
                self._taking,
                Timer(self._clock, _CLOCK_INTERVAL, self._align),
                Timer(self._clock, _COUNT_INTERVAL, self._count),
            ]
        )
        for loaded in self._loader.loaded.values():
            self._reader.add(loaded)
            self._places[loaded.probe.name] = self._places_of(loaded, self._config)
        self._kernel_symbols = KernelSymbols()
        self._stacks = self._split.stacks = StackNaming(
            self._split.hand_on, self._clock, Symbolizer(self._clock, self._kernel_symbols)
        )
        self._mapping_news = self._open_mapping_news()
        self._discovery = self._split.discovery = Discovery(
            self._clock,
            thread_context.shared,
            self._follow,
            self._all_places(),
            tell=self._tell,
            news=self._mapping_news,
            scan_interval=self._config.scan_interval,
        )
        self._pressure = self._open_pressure()
        self._align()
        if self._config.drop_privileges:
            self._drop_privileges()
        self._stacks.start()
        self._reader.start()
        self._ticker.start()
        self._discovery.start()

    @staticmethod
    def _open_mapping_news() -> MappingNews | None:
        try:
            return MappingNews()
        except MappingsError as error:
            log.warning("processes are looked through in intervals for what they load", reason=str(error))
            return None

    def _open_pressure(self) -> MemoryPressure | None:
        try:
            return MemoryPressure(self._telemetry, self._clock, self._readings)
        except BridgeError as error:
            log.warning("no figures of memory pressure", reason=str(error))
            return None

    def _tell(self, records: NDArray[np.void]) -> None:
        self._split.hand_on(KernelEvents(process.PROBE.name, records))

    def _all_places(self) -> list[Place]:
        return [place for places in self._places.values() for place in places]

    def _places_of(self, loaded: LoadedProbe, config: KernelConfig) -> list[Place]:
        """The files that a probe's programs hang on."""
        probe = loaded.probe
        attach = partial(self._attach, probe.name)
        if probe is user.PROBE:
            places = self._configure_functions(config.probes.user).places()
            return [FunctionPlace(uprobes, library, "", attach) for library, uprobes in places]
        if probe.library:
            uprobes = tuple(one for one in probe.uprobes if probe.wanted_uprobe(one, config.probes))
            return [FunctionPlace(uprobes, probe.library, probe.function, attach)]
        return []

    def _configure_functions(self, config: UserConfig) -> user.Functions:
        """Tell the kernel of the configured functions, and the intake of their names."""
        assert self._loader is not None
        functions = user.Functions.of(config)
        table = self._loader.map(user.PROBE.name, "user_probes", U4, USER_PROBE)
        for number, row in functions.table():
            table.set(number, row)
        self._intake.split[user.PROBE.name] = functions.split
        return functions

    def _drop_privileges(self) -> None:
        assert self._loader is not None
        held = privileges.effective()
        late = any(
            loaded.probe.uprobes or loaded.probe is user.PROBE for loaded in self._loader.loaded.values()
        )
        by_perf = self._backend.by_perf(self._config.probes)
        kept = privileges.needed_for_reading(held, attach_late=late, by_perf=by_perf)
        privileges.keep_only(frozenset(kept))
        log.info(
            "privileges dropped",
            kept={privileges.name_of(number): reason for number, reason in kept.items()},
        )

    def close(self) -> None:
        """`stop`, for callers without a loop."""
        with self._changing:
            self._close()

    def _close(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        if self._reader is not None:
            self._reader.stop()
        if self._discovery is not None:
            # What comes of processes from here on is nobody's any more.
            self._split.discovery = None
            self._discovery.stop()
        if self._ticker is not None:
            self._take_rest()
        if self._stacks is not None:
            self._stacks.stop()
            self._kernel_symbols.close()
        if self._ticker is not None:
            self._count()
        if self._mapping_news is not None:
            self._mapping_news.close()
            self._mapping_news = None
        if self._loader is not None:
            self._loader.close()
        self._places.clear()
        self._discovery = self._reader = self._ticker = self._loader = None

    @property
    def followed(self) -> frozenset[int]:
        """Processes whose threads' spans are known to the kernel, as they were found by looking."""
        return self._discovery.followed if self._discovery is not None else frozenset()

    def covered(self, probe: str) -> int:
        """How many libraries a probe hangs on."""
        return self._loader.covered(probe) if self._loader is not None else 0

    def devices(self) -> dict[str, NDArray[np.void]]:
        """What each block device went through since the probe was loaded, by name ("major:minor")."""
        if self._loader is None or "block" not in self._loader.loaded:
            return {}
        with self._objects:
            return self._devices()

    def _devices(self) -> dict[str, NDArray[np.void]]:
        assert self._loader is not None
        table = self._loader.map("block", "devices", BLOCK_DEVICE, BLOCK_TOTALS)
        found = {f"{key['major']}:{key['minor']}": table.get(key) for key in table.keys()}  # noqa: SIM118 (no dict)
        return {name: row[0] for name, row in found.items() if row is not None}

    @property
    def config(self) -> KernelConfig:
        """What is in effect."""
        return self._config

    def reload(self, config: KernelConfig) -> None:
        """Switch probes on and off, and swap those whose configuration changed; the others go on untouched.

        Raises:
            ReloadError: parts of the configuration are not in effect, each with what mends it; the rest is.
        """
        with self._changing:
            self._reload(config)

    def _reload(self, config: KernelConfig) -> None:
        before, problems = self._config, list(_fixed(self._config, config))
        if self._loader is None or self._reader is None:
            if config.probes != before.probes:
                problems.append("kernel.probes: no probe is loaded; they take effect after a restart")
        else:
            in_effect = before.probes
            for probe in PROBES:
                try:
                    self._reload_probe(probe, before, config)
                except BridgeError as error:
                    problems.append(f"kernel.probes.{probe.name}: {error}")
                else:
                    in_effect = _with_probe(in_effect, probe, config)
            self._config = before.model_copy(update={"probes": in_effect})
        if problems:
            raise ReloadError("\n".join(problems))

    def _reload_probe(self, probe: Probe, before: KernelConfig, config: KernelConfig) -> None:
        assert self._loader is not None
        loaded = self._loader.loaded.get(probe.name)
        wanted = is_wanted(probe, config.probes)
        changed = probe.config_of(before.probes) != probe.config_of(config.probes)
        if loaded is None and not wanted:
            return
        if loaded is not None and not wanted:
            self._switch_off(loaded)
        elif loaded is None or changed:
            if loaded is None and not changed and is_wanted(probe, before.probes):
                return  # refused at the start already, and nothing about it is new
            if not privileges.can_load():
                raise ReloadError(_NEED_PRIVILEGES)
            self._switch_on(probe, loaded, config)

    def _switch_off(self, loaded: LoadedProbe) -> None:
        assert self._loader is not None
        assert self._reader is not None
        name = loaded.probe.name
        with self._objects:
            self._places.pop(name, None)
            self._reader.remove(loaded)
            self._loader.unload(name, last=self._take_last)
            self.states[name] = ProbeState(name, loaded=False, reason="switched off")
        self._loaded_gauge.labels(name).set(0)
        self._tell_places()
        log.info("a probe is switched off", probe=name)

    def _take_rest(self) -> None:
        """What all probes have left behind; they are detached first, so that no event is counted and left."""
        assert self._loader is not None
        with self._objects:
            self._loader.detach()
            for loaded in self._loader.loaded.values():
                self._intake.take_ring(loaded)
                self._intake.take_sums(loaded)

    def _take_last(self, loaded: LoadedProbe) -> None:
        """What a probe that is detached has left behind, and its counters."""
        self._intake.take_ring(loaded)
        self._intake.take_sums(loaded)
        self._count_probe(loaded.probe.name)

    def _switch_on(self, probe: Probe, loaded: LoadedProbe | None, config: KernelConfig) -> None:
        """Load a probe, in the place of itself if it is at work."""
        assert self._loader is not None
        assert self._reader is not None
        with self._objects:
            if loaded is not None and probe is not user.PROBE:
                self._reader.add(self._loader.reload(probe.name, config))
                log.info("a probe is swapped", probe=probe.name)
                return
            if loaded is not None:
                # Other functions in other files: nothing of the old ones is of use to the new ones.
                self._switch_off(loaded)
            self._loader.config = config
            self._load(probe)
            now = self._loader.loaded.get(probe.name)
            if now is None:
                raise BridgeError(self.states[probe.name].reason)
            self._accounts.open(probe.name, self._loader.cpus)
            self._reader.add(now)
            self._places[probe.name] = self._places_of(now, config)
        self._tell_places()
        log.info("a probe is switched on", probe=probe.name)

    def _tell_places(self) -> None:
        assert self._discovery is not None
        self._discovery.replace_places(self._all_places())

    def _follow(self, pid: int, layout: ThreadContextLayout) -> None:
        assert self._loader is not None
        processes = self._loader.processes
        processes.follow(pid, layout)
        if not (PROC / str(pid)).exists():
            processes.discard(pid)

    def _attach(self, name: str, uprobes: tuple[Uprobe, ...], file: MappedFile) -> Callable[[], None] | None:
        assert self._loader is not None
        try:
            with self._objects:
                if name not in self._loader.loaded:  # switched off at this moment
                    return None
                attached = self._loader.attach_file(name, file.open_path, uprobes)
        except (OSError, LibbpfError) as error:
            log.warning("a file is not covered", probe=name, path=file.path, reason=str(error))
            return None
        log.info("a file is covered", probe=name, path=file.path)
        return partial(self._detach, name, attached)

    def _detach(self, name: str, file: AttachedFile) -> None:
        assert self._loader is not None
        with self._objects:
            self._loader.detach_file(name, file)

    def complete_until(self, wanted: int) -> int:
        """Until when (unix nanoseconds) all that the kernel noted was handed on; 0: nothing was.

        Where that is before `wanted`, the kernel is read again soon, sooner than `sum_interval` says.
        """
        if self._complete_until < wanted and self._ticker is not None:
            self._taking.hurry(_SOON)
            self._ticker.wake()
        return self._complete_until

    def _take_all(self) -> None:
        assert self._reader is not None
        began = self._clock.time_ns()
        self._take_sums()
        self._reader.read_all()
        if self._stacks is not None:
            self._stacks.settle(self._config.sum_interval)
        self._complete_until = began

    def _take_sums(self) -> None:
        assert self._loader is not None
        with self._objects:
            for loaded in self._loader.loaded.values():
                self._intake.take_sums(loaded)

    def _align(self) -> None:
        self._alignment.sample()
        self._telemetry.gauge(catalog.KERNEL_CLOCK_ERROR).set(self._alignment.error)
        steps = self._alignment.steps
        self._telemetry.counter(catalog.KERNEL_CLOCK_STEPS).inc(steps - self._steps)
        self._steps = steps

    def _count(self) -> None:
        with self._objects:
            self._publish()

    def _publish(self) -> None:
        assert self._loader is not None
        for name in list(self._loader.loaded):
            self._count_probe(name)
        if self._discovery is not None:
            self._telemetry.gauge(catalog.KERNEL_PROCESSES).set(len(self._discovery.followed))
        for name, loaded in self._loader.loaded.items():
            if loaded.probe.uprobes or loaded.probe is user.PROBE:
                self._telemetry.gauge(catalog.KERNEL_LIBRARIES).labels(name).set(self.covered(name))
        self._device_accounts.update(self.devices())
        if self._tells_time_wait and tcp.PROBE.name in self._loader.loaded:
            self._count_time_wait()
        if self._pressure is not None:
            if memory.PROBE.name in self._loader.loaded:
                self._pressure.update(self.followed)
            else:
                self._pressure.clear()
        if self._statistics_fd >= 0:
            self._publish_costs()

    def _count_time_wait(self) -> None:
        try:
            self._time_wait_accounts.update(read_time_wait())
        except BridgeError as error:
            self._tells_time_wait = False
            log.warning("no figures of TIME_WAIT", error=str(error))

    def _count_probe(self, name: str) -> None:
        assert self._loader is not None
        malformed = self._intake.malformed.pop(name, 0)
        if lost := self._accounts.update(name, self._loader.count(name), malformed=malformed):
            self._on_lost(name, lost)

    def costs(self) -> dict[str, dict[str, tuple[int, int]]]:
        """By probe and program: nanoseconds and runs so far, with `run_statistics`."""
        if self._loader is None:
            return {}
        with self._objects:
            return {name: loaded.costs() for name, loaded in self._loader.loaded.items()}

    def _publish_costs(self) -> None:
        gauge = self._telemetry.gauge(catalog.KERNEL_PROGRAM_COST)
        for name, programs in self.costs().items():
            for program, (nanoseconds, runs) in programs.items():
                if runs:
                    gauge.labels(name, program).set(nanoseconds / runs / 1e9)


def _fixed(before: KernelConfig, after: KernelConfig) -> Iterator[str]:
    """The changed settings that need a restart."""
    for key in type(before).model_fields:
        if key != "probes" and getattr(before, key) != getattr(after, key):
            yield f"kernel.{key}: takes effect after a restart"
    for probe in PROBES:
        old, new = probe.config_of(before.probes), probe.config_of(after.probes)
        if isinstance(old, ProbeConfig) and isinstance(new, ProbeConfig) and old.ring_size != new.ring_size:
            yield f"kernel.probes.{probe.name}.ring_size: a ring buffer keeps its size until a restart"


def _with_probe(probes: ProbesConfig, probe: Probe, config: KernelConfig) -> ProbesConfig:
    own = probe.config_of(config.probes)
    return probes if own is None else probes.model_copy(update={probe.name: own})

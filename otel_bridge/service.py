"""The service: what starts in which order, what stops in which, and what a signal does."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import TYPE_CHECKING

import structlog

from otel_bridge import __version__
from otel_bridge.connectors.derive.push import Push
from otel_bridge.connectors.derive.text import DerivedText
from otel_bridge.contracts import SystemClock
from otel_bridge.control.control import Control
from otel_bridge.errors import BridgeError
from otel_bridge.exporters.otlp import exporter as otlp_exporter
from otel_bridge.gpu.monitor import GpuMonitor
from otel_bridge.kernel.clock import Alignment
from otel_bridge.kernel.monitor import KernelMonitor, ReloadError
from otel_bridge.pipeline import Pipeline, Steps, build_steps
from otel_bridge.receivers.otlp.codec import choose_codec
from otel_bridge.receivers.otlp.receiver import OtlpReceiver
from otel_bridge.rules.component import Rules
from otel_bridge.rules.outputs.outputs import Outputs
from otel_bridge.telemetry import Telemetry, Tracing
from otel_bridge.telemetry_server import TelemetryServer
from otel_bridge.ui.pages import Sources, Ui
from otel_bridge.verbosity import Verbosity

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.contracts import Component
    from otel_bridge.events import KernelEvents, KernelEventSink
    from otel_bridge.settings import Settings

log = structlog.get_logger(__name__)


class KernelEventFork:
    """A KernelEventSink that hands events to several, in order.

    The last one may keep the records and change them; those before only read.
    """

    def __init__(self, last: KernelEventSink, *before: KernelEventSink) -> None:
        self._sinks = (*before, last)

    def take(self, events: KernelEvents) -> None:
        """Hand on."""
        for sink in self._sinks:
            sink.take(events)


class Service:
    """One bridge.

    Started from the exporters backwards, so that nothing is taken in before there is somewhere to put it;
    stopped from the receivers forwards, so that what was taken in still leaves.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry | None = None) -> None:
        self.settings = settings
        self.telemetry = telemetry or Telemetry(tracing=tracing(settings))
        self._clock = SystemClock()
        self._not_ready: str | None = "starting"
        self._started: list[Component] = []
        self.codec, codec_reason = choose_codec(settings.service.codec)
        log.info("codec", name=self.codec.name, reason=codec_reason)
        self.exporter = otlp_exporter.build(
            settings.exporters,
            settings.storage,
            codec=self.codec,
            clock=self._clock,
            telemetry=self.telemetry,
        )
        self.verbosity = verbosity(settings)
        self.control = (
            Control(settings.control, self.telemetry, self._clock, self.verbosity)
            if settings.control.enabled
            else None
        )
        self.outputs = Outputs(settings.rules, self.telemetry, self._clock)
        self.rules = Rules(settings.rules, self.telemetry, self._clock)
        if self.control is not None:
            self.rules.add_sink(self.control)
        self.rules.add_sink(self.outputs)
        followers = (self.rules, self.control) if self.control is not None else (self.rules,)
        self.gpu = GpuMonitor(
            settings.gpu,
            self.telemetry,
            self._clock,
            alignment=Alignment(),
            readings=followers,
            firings=(self.outputs,),
        )
        metrics = settings.service.telemetry.metrics
        self.ui = self._pages(settings) if metrics.endpoint and settings.service.ui.enabled else None
        steps = self._steps(settings)
        self.pipeline = Pipeline(
            self.codec, steps, self.exporter, self.telemetry, self._clock, storage=settings.storage
        )
        self.push = Push(
            settings.connectors.derive.push, lambda: self.pipeline.derived, self.telemetry, self._clock
        )
        self.kernel = KernelMonitor(
            settings.kernel,
            KernelEventFork(self.pipeline, self.rules),
            self.telemetry,
            self._clock,
            on_lost=self.rules.lost,
            readings=followers,
        )
        self.pipeline.follow(self.kernel.complete_until)
        self.receiver = OtlpReceiver(settings.receivers.otlp, self.pipeline, self.telemetry)
        self.telemetry_server = (
            TelemetryServer(
                metrics.endpoint,
                metrics,
                self.telemetry,
                lambda: self._not_ready,
                self.ui,
                derived=DerivedText(lambda: self.pipeline.derived, self._clock),
            )
            if metrics.endpoint
            else None
        )

    async def start(self) -> None:
        """Begin to serve.

        Raises:
            StartError: a port is taken, a file is missing, …; whatever had started is stopped again.
        """
        # The kernel first, since capabilities are a thread's own: threads of the others start without them.
        # Only the gates go on needing them.
        for component in (
            self.control.gates if self.control is not None else None,
            self.kernel,
            self.telemetry_server,
            self.exporter,
            self.push,
            self.control,
            self.outputs,
            self.rules,
            self.gpu,
            self.pipeline,
            self.receiver,
        ):
            if component is None:
                continue
            self._started.append(component)
            try:
                await component.start()
            except BaseException:
                self._started.remove(component)
                await self.stop()
                raise
        self._not_ready = None
        # What lives now lives for good: later collections need not walk it again and again.
        gc.collect()
        gc.freeze()

    async def stop(self) -> None:
        """Take nothing new, deliver what is here within the drain timeout, leave the rest on disk."""
        self._not_ready = "stopping"
        self.pipeline.hurry()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.settings.service.drain_timeout
        for component in (
            self.receiver,
            self.kernel,
            self.gpu,
            self.pipeline,
            self.rules,
            self.outputs,
            self.control,
            self.control.gates if self.control is not None else None,
            self.push,
            self.exporter,
            self.telemetry_server,
        ):
            if component is not None and component in self._started:
                self._started.remove(component)
                await component.stop(max(0.0, end - loop.time()))
        await asyncio.to_thread(self.telemetry.close)

    async def reload(self, settings: Settings) -> None:
        """Use another configuration.

        Processors and connectors change with the next batch, kernel probes once they are swapped; connections
        stay. What cannot change while running (ports, destinations, storage, and probes when the privileges
        to load them were given up) keeps its old setting, and the log says why.
        """
        self.pipeline.replace(self._steps(settings))
        try:
            # Loading takes some hundred milliseconds a probe; spans go on meanwhile.
            await asyncio.to_thread(self.kernel.reload, settings.kernel)
        except ReloadError as error:
            for problem in str(error).splitlines():
                log.warning("a changed setting is not in effect", reason=problem)
        for part in ("receivers", "exporters", "storage", "gpu", "control", "service"):
            if getattr(settings, part) != getattr(self.settings, part):
                log.warning("a changed setting takes effect only after a restart", part=part)
        if settings.connectors.derive.push != self.settings.connectors.derive.push:
            log.warning("a changed setting takes effect only after a restart", part="connectors.derive.push")
        for part in ("max_alerts", "shortest_alert", "alertmanager", "grafana_annotations"):
            if getattr(settings.rules, part) != getattr(self.settings.rules, part):
                log.warning("a changed setting takes effect only after a restart", part=f"rules.{part}")
        self.settings = self.settings.model_copy(
            update={
                "processors": settings.processors,
                "connectors": settings.connectors,
                "rules": settings.rules,
                "kernel": self.kernel.config,
            }
        )

    def _steps(self, settings: Settings) -> Steps:
        return build_steps(
            settings.processors,
            self.telemetry,
            self._clock,
            connectors=settings.connectors,
            tap=self.control.tap if self.control is not None else lambda _: None,
            rules=lambda columns: self.rules.tap(columns, settings.rules),
            recent=self.ui.tap if self.ui is not None else lambda _: None,
            gpu_usage=self.gpu.usage,
            verbosity=self.verbosity,
        )

    def _pages(self, settings: Settings) -> Ui:
        control = self.control
        sources = Sources(
            not_ready=lambda: self._not_ready,
            breakers=control.board.states if control is not None else list,
            rules=self.rules.states,
        )
        return Ui(settings.service.ui, self.telemetry, self._clock, sources)


def verbosity(settings: Settings) -> Verbosity:
    """How much the bridge tells: as usual, until a breaker opens."""
    rate = settings.control.actions.highest_sampling_rate if settings.control.enabled else 0.0
    if rate and not settings.processors.sample.enabled:
        log.warning(
            "control.actions.verbosity asks for more traces, but nothing is sampled: "
            "processors.sample.enabled is false"
        )
    return Verbosity(settings.service.telemetry.logs.level, rate)


def tracing(settings: Settings) -> Tracing | None:
    """How the bridge's own spans are recorded; None when they are not."""
    traces = settings.service.telemetry.traces
    return Tracing(traces.endpoint, traces.sampling_ratio) if traces.endpoint else None


async def run(load: Callable[[], Settings], *, announce: Callable[[Service], None] = lambda _: None) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads.

    Args:
        load: reads the configuration; called again on SIGHUP.
        announce: told once, when the service is ready.
    """
    loop = asyncio.get_running_loop()
    stopping, changed = asyncio.Event(), asyncio.Event()
    service = Service(load())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, changed.set)
    await service.start()
    reloading = asyncio.create_task(_reload_when(changed, service, load))
    try:
        log.info("ready", version=__version__)
        announce(service)
        await stopping.wait()
        log.info("stopping", drain_timeout=service.settings.service.drain_timeout)
    finally:
        reloading.cancel()
        await asyncio.gather(reloading, return_exceptions=True)
        await service.stop()


async def _reload_when(changed: asyncio.Event, service: Service, load: Callable[[], Settings]) -> None:
    """One reload at a time; signals that come meanwhile make one more."""
    while await changed.wait():
        changed.clear()
        try:
            await service.reload(load())
        except BridgeError as error:
            log.error("reload refused; the old configuration stays", error=str(error))  # noqa: TRY400
        except Exception:
            log.exception("reload failed half way; the service goes on")
        else:
            log.info("configuration reloaded")

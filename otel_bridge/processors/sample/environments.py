"""Which environment a span belongs to, and the rate of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.model import Scope, SpanKind
from otel_bridge.processors.sample.rate import RateController
from otel_bridge.processors.sample.threshold import threshold_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.processors.sample.config import SampleConfig
    from otel_bridge.telemetry import Telemetry
    from otel_bridge.trace_ids import U8
    from otel_bridge.verbosity import Verbosity

_OTHER = "other"
_OLDER_KEY = "deployment.environment"


class Environments:
    """One controller for each environment with a rate of its own, and one for all others.

    Attributes:
        widest: the lowest threshold that each can have, by environment.
        narrowest: the highest.
    """

    def __init__(
        self,
        config: SampleConfig,
        columns: PlanBuilder,
        telemetry: Telemetry,
        now: float,
        verbosity: Verbosity,
    ) -> None:
        self._verbosity = verbosity
        self._names = [_OTHER, *config.environments]
        rates = (config.rate, *config.environments.values())
        self._controllers = [RateController(rate, now) for rate in rates]
        self._index = {name.encode(): number for number, name in enumerate(config.environments, 1)}
        # The last one that a resource has counts.
        keys = (_OLDER_KEY, catalog.DEPLOYMENT_ENVIRONMENT.key) if config.environments else ()
        self._slots = [columns.want(key, scope=Scope.RESOURCE) for key in keys]
        gauge = telemetry.gauge(catalog.SAMPLE_RATE)
        self._gauges = [gauge.labels(name) for name in self._names]
        self._rates = [-1.0] * len(self._names)
        self._thresholds: U8 = np.zeros(len(self._names), "<u8")
        bounds = [controller.bounds for controller in self._controllers]
        most = verbosity.highest_rate
        self.widest: U8 = np.array([threshold_of(max(highest, most)) for _, highest in bounds], "<u8")
        self.narrowest: U8 = np.array([threshold_of(lowest) for lowest, _ in bounds], "<u8")

    def adopt(self, older: Environments) -> None:
        """Go on with the traffic that another one has seen."""
        seen = dict(zip(older._names, older._controllers, strict=True))
        for name, controller in zip(self._names, self._controllers, strict=True):
            if name in seen:
                controller.adopt(seen[name])

    def of(self, batch: Batch) -> NDArray[np.intp]:
        """For each span the number of its environment."""
        numbers = np.zeros(batch.resources, np.intp)
        for slot in self._slots:
            for record in batch.column(slot):
                off, size = int(record["off"]), int(record["len"])
                numbers[record["row"]] = self._index.get(batch.data[off : off + size], 0)
        of_span: NDArray[np.intp] = numbers[batch.spans["resource"]]
        return of_span

    def observe(self, batch: Batch, environments: NDArray[np.intp], now: float) -> None:
        """Count the batch's requests: its entry spans and roots."""
        spans = batch.spans
        kinds = spans["kind"]
        requests = (kinds == SpanKind.SERVER) | (kinds == SpanKind.CONSUMER)
        requests |= np.ascontiguousarray(spans["parent_id"]).view("<u8") == 0
        rows = np.flatnonzero(requests & (spans["reject"] == 0))
        start, end = spans["start"][rows], spans["end"][rows]
        durations = np.where(end > start, end - start, 0)
        for number, controller in enumerate(self._controllers):
            several = len(self._controllers) > 1
            controller.observe(now, durations[environments[rows] == number] if several else durations)

    def thresholds(self, now: float) -> U8:
        """The threshold of each environment's present rate."""
        for number, controller in enumerate(self._controllers):
            rate = max(controller.rate(now), self._verbosity.sampling_rate)
            if rate != self._rates[number]:
                self._rates[number] = rate
                self._thresholds[number] = threshold_of(rate)
                self._gauges[number].set(rate)
        return self._thresholds

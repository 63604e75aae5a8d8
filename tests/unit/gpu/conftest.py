"""Stand-in libraries, built once, and the parts that read them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from otel_bridge.contracts import SystemClock
from otel_bridge.gpu.absent import Absences
from otel_bridge.gpu.clock import ReadingClock
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.gpu.hub import Hub
from otel_bridge.gpu.nvml import Nvml
from otel_bridge.gpu.sampler import Sampler
from otel_bridge.kernel.clock import Alignment
from otel_bridge.telemetry import Telemetry
from tests.support.gpu import SCENARIO, Scenario, build

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_bridge.catalog import Metric
    from otel_bridge.firings import Firing
    from otel_bridge.readings import Reading


class SteppedClock(SystemClock):
    """The real time, and further on as a test says."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time_ns(self) -> int:
        return super().time_ns() + round(self.ahead * 1e9)

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class SteppedAlignment(Alignment):
    """Moves readings as far on as the clock."""

    def __init__(self, clock: SteppedClock) -> None:
        super().__init__()
        self._clock = clock

    @property
    def offset(self) -> int:
        return super().offset + round(self._clock.ahead * 1e9)


@dataclass
class Sink:
    """Keeps readings and firings."""

    readings: list[Reading] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)

    def take_readings(self, readings: Sequence[Reading]) -> None:
        self.readings += readings

    def take_firing(self, firing: Firing) -> None:
        self.firings.append(firing)

    def of(self, metric: Metric, **labels: str) -> list[float]:
        return [
            one.value
            for one in self.readings
            if one.metric == metric.name and labels.items() <= dict(one.labels).items()
        ]


class Rig:
    """A sampler over a stand-in library, stepped by the test."""

    def __init__(self, library: str, scenario: Scenario, **settings: Any) -> None:
        self.scenario = scenario
        self.telemetry, self.clock, self.sink = Telemetry(), SteppedClock(), Sink()
        self.config = GpuConfig.model_validate({"library": library, **settings})
        self.hub = Hub(self.config, self.clock, [self.sink], [self.sink])
        self.telemetry.registry.register(self.hub.board)
        self.telemetry.registry.register(self.hub.xids)
        self.sampler = Sampler(
            self.config,
            Nvml(library),
            self.hub,
            absences=Absences(self.telemetry),
            reading_clock=ReadingClock(SteppedAlignment(self.clock)),
            telemetry=self.telemetry,
            clock=self.clock,
        )

    def play(self, *lines: str) -> None:
        """Change what the cards do, and let the library see it."""
        self.scenario.play(*lines)
        # The library looks no more often than each 10 ms.
        time.sleep(0.02)

    def rounds(self, count: int, *, seconds: float = 0.0) -> None:
        """Have so many rounds, so far apart."""
        for _ in range(count):
            self.sampler.step()
            self.clock.ahead += seconds

    def scrape(self) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """What Prometheus would see: by name and labels."""
        text = generate_latest(self.telemetry.registry).decode()
        return {
            family.name: {
                tuple(sorted(one.labels.items())): one.value
                for one in family.samples
                if not one.name.endswith("_created")
            }
            for family in text_string_to_metric_families(text)
        }

    def shown(self, metric: Metric, **labels: str) -> float | None:
        """One series as Prometheus would see it; None: there is none."""
        return self.scrape().get(metric.name, {}).get(tuple(sorted(labels.items())))


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """The directory of the stand-in libraries."""
    return build(tmp_path_factory.mktemp("gpu"))


@pytest.fixture
def scenario(tmp_path, monkeypatch) -> Scenario:
    """What the stand-in libraries play."""
    made = Scenario(tmp_path / "scenario")
    made.play("")
    monkeypatch.setenv(SCENARIO, str(made.path))
    return made


@pytest.fixture
def rig(libraries, scenario) -> Iterator[Any]:
    """Makes a rig that plays a scenario; all are closed with the test."""
    made: list[Rig] = []

    def make(*lines: str, opened: bool = True, **settings: Any) -> Rig:
        scenario.play(*lines)
        one = Rig(str(libraries / "libnvidia-ml.so.1"), scenario, **settings)
        made.append(one)
        if opened:
            one.sampler.open()
        return one

    yield make
    for one in made:
        one.sampler.stop()


@pytest.fixture
def logged():
    """Log lines of the test."""
    with structlog.testing.capture_logs() as lines:
        yield lines

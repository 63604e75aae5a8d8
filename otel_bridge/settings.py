"""The one configuration file: read, overridden from the environment, checked as a whole, shown again.

Layers, later ones win: embedded defaults, the YAML file (with the Collector's `${env:NAME:-default}`),
environment variables `OTEL_BRIDGE__RECEIVERS__OTLP__PROTOCOLS__GRPC__ENDPOINT=…` (two underscores
between keys, values in YAML), and `--set key.path=value`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from otel_bridge.connectors.derive.config import DeriveConfig
from otel_bridge.control.config import ControlConfig
from otel_bridge.errors import ConfigError, ConfigProblem
from otel_bridge.explain import lines_of, problems_of
from otel_bridge.exporters.otlp.config import Exporters, StorageConfig, default_exporters
from otel_bridge.gpu.config import GpuConfig
from otel_bridge.kernel.config import KernelConfig
from otel_bridge.listeners.config import AuthConfig, TlsConfig
from otel_bridge.processors.consistency.config import ConsistencyConfig
from otel_bridge.processors.enrich.config import EnrichConfig
from otel_bridge.processors.gpu.config import GpuSpansConfig
from otel_bridge.processors.join.config import JoinConfig
from otel_bridge.processors.redact.config import RedactConfig
from otel_bridge.processors.sample.config import SampleConfig
from otel_bridge.receivers.otlp.config import OtlpReceiverConfig
from otel_bridge.rules.config import RulesConfig
from otel_bridge.ui.config import UiConfig
from otel_bridge.units import Duration, Endpoint, EndpointText

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

ENVIRONMENT_PREFIX = "OTEL_BRIDGE__"
_REFERENCE = re.compile(r"\$\{env:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ReceiverSettings(_Model):
    """Where telemetry comes in."""

    otlp: OtlpReceiverConfig = OtlpReceiverConfig()


class ProcessorSettings(_Model):
    """What is done to spans, in this order."""

    enrich: EnrichConfig = EnrichConfig()
    join: JoinConfig = JoinConfig()
    gpu: GpuSpansConfig = GpuSpansConfig()
    consistency: ConsistencyConfig = ConsistencyConfig()
    sample: SampleConfig = SampleConfig()
    redact: RedactConfig = RedactConfig()


class ConnectorSettings(_Model):
    """What is made of spans beside the spans themselves."""

    derive: DeriveConfig = DeriveConfig()


class MetricsSettings(_Model):
    """The bridge's own metrics."""

    endpoint: EndpointText | None = Field(
        Endpoint("127.0.0.1", 9464),
        description="Where /metrics, /ui, /healthz and /readyz are served; null serves none.",
    )
    tls: TlsConfig | None = Field(None, description="null speaks plaintext.")
    auth: AuthConfig | None = Field(
        None,
        description="Who may read /metrics and /ui (browsers: the token as password); null lets everybody "
        "read /metrics, and visitors from this machine read /ui.",
    )


class LogSettings(_Model):
    """The bridge's own logs, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto: readable on a terminal, JSON lines elsewhere."
    )


class TraceSettings(_Model):
    """The bridge's own spans, through opentelemetry-sdk."""

    endpoint: str | None = Field(
        None,
        description="OTLP/gRPC endpoint URL for the bridge's own spans; null records none. Do not name the "
        "bridge itself here.",
    )
    sampling_ratio: float = Field(0.01, ge=0, le=1, description="Share of requests that are traced.")


class TelemetrySettings(_Model):
    """How the bridge is watched."""

    metrics: MetricsSettings = MetricsSettings()
    logs: LogSettings = LogSettings()
    traces: TraceSettings = TraceSettings()


class ServiceSettings(_Model):
    """The service as a whole."""

    telemetry: TelemetrySettings = TelemetrySettings()
    ui: UiConfig = UiConfig()
    codec: Literal["auto", "native", "reference"] = Field(
        "auto", description="auto: the native codec where it is installed, else the reference on protobuf."
    )
    drain_timeout: Duration = Field(
        10.0, description="After SIGTERM: how long to go on delivering before the rest is left on disk."
    )


class Settings(_Model):
    """Everything a user can set."""

    receivers: ReceiverSettings = ReceiverSettings()
    processors: ProcessorSettings = ProcessorSettings()
    connectors: ConnectorSettings = ConnectorSettings()
    exporters: Exporters = Field(default_factory=default_exporters)
    storage: StorageConfig | None = Field(
        default_factory=lambda: StorageConfig(directory=default_storage()),
        description="Where requests wait that a destination cannot take now; null keeps them in memory only.",
    )
    kernel: KernelConfig = KernelConfig()
    gpu: GpuConfig = GpuConfig()
    control: ControlConfig = Field(default_factory=ControlConfig)
    rules: RulesConfig = RulesConfig()
    service: ServiceSettings = ServiceSettings()

    @model_validator(mode="after")
    def _sample_has_a_disk(self) -> Self:
        sample = self.processors.sample
        if sample.enabled and sample.keep is not None and sample.hold == "disk" and self.storage is None:
            raise ValueError(
                "processors.sample.hold is disk and storage is null; set storage.directory, or hold to "
                "sender or memory"
            )
        return self


def load(
    path: Path | None = None,
    *,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Read and check a configuration; without a path, the embedded defaults with overrides.

    Args:
        path: the YAML file.
        overrides: "key.path=value" texts, the value in YAML.
        environment: instead of the process's own.

    Raises:
        ConfigError: with every problem found, not only the first.
    """
    environment = os.environ if environment is None else environment
    source = str(path) if path else "embedded defaults"
    document, lines = ({}, {}) if path is None else _read(path, environment)
    layers = [*_environment_overrides(environment), *_text_overrides(overrides)]
    for origin, keys, value in layers:
        _assign(document, keys, value, origin)
    if isinstance(storage := document.get("storage"), dict):
        # A user who sets a size alone keeps the place.
        storage.setdefault("directory", str(default_storage()))
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise ConfigError(source, problems_of(Settings, error.errors(), lines)) from None


def effective(settings: Settings) -> str:
    """The configuration as YAML with every default filled in and every secret masked."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def default_storage() -> Path:
    """Where the disk queue is unless somebody says otherwise: systemd's place, root's, or the user's own."""
    if directory := os.environ.get("STATE_DIRECTORY"):
        return Path(directory) / "queue"
    if os.geteuid() == 0:
        return Path("/var/lib/otel-bridge/queue")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "otel-bridge" / "queue"


# Reading


def _read(path: Path, environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[tuple[str, ...], int]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigError(str(path), [ConfigProblem("", found, "a readable YAML file")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [ConfigProblem("", str(error), "UTF-8 text")]) from error
    problems: list[ConfigProblem] = []
    text = _REFERENCE.sub(lambda match: _resolve(match, environment, problems), text)
    if problems:
        raise ConfigError(str(path), problems)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(str(path), [ConfigProblem("", " ".join(str(error).split()), "YAML")]) from error
    if document is None:
        return {}, {}
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise ConfigError(str(path), [ConfigProblem("", f"a {kind}", "a mapping with keys like receivers")])
    return document, dict(lines_of(node))


def _resolve(match: re.Match[str], environment: Mapping[str, str], problems: list[ConfigProblem]) -> str:
    name, default = match.groups()
    value = environment.get(name, default)
    if value is None:
        problems.append(
            ConfigProblem(
                match.group(),
                "an environment variable that is not set",
                f"{name} set, or ${{env:{name}:-DEFAULT}}",
            )
        )
        return ""
    return value


_Layer = tuple[str, tuple[str, ...], Any]


def _environment_overrides(environment: Mapping[str, str]) -> Iterator[_Layer]:
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX):
            keys = tuple(part.lower() for part in name.removeprefix(ENVIRONMENT_PREFIX).split("__"))
            yield name, keys, _yaml_value(name, environment[name])


def _text_overrides(overrides: Iterable[str]) -> Iterator[_Layer]:
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ConfigError("--set", [ConfigProblem("", repr(text), "key.path=value")])
        yield "--set", tuple(key.split(".")), _yaml_value(f"--set {key}", value)


def _yaml_value(origin: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(origin, [ConfigProblem("", repr(text), "a value in YAML")]) from error


def _assign(document: dict[str, Any], keys: tuple[str, ...], value: Any, origin: str) -> None:
    for depth, key in enumerate(keys[:-1], 1):
        child = document.setdefault(key, {})
        if child is None:
            child = document[key] = {}
        if not isinstance(child, dict):
            path = ".".join(keys[:depth])
            raise ConfigError(origin, [ConfigProblem(path, repr(child), "a mapping, to set a key below it")])
        document = child
    document[keys[-1]] = value

"""What users write under `exporters:` and `storage:`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AnyHttpUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from otel_bridge.backoff import RetryConfig
from otel_bridge.units import ByteSize, Duration, Endpoint, EndpointText

if TYPE_CHECKING:
    from pydantic_core import InitErrorDetails

NAME = re.compile(r"(otlp|otlphttp)(?:/([A-Za-z0-9][A-Za-z0-9_.-]*))?")
MIB = 1 << 20

PositiveSize = Annotated[ByteSize, Field(gt=0)]
PositiveDuration = Annotated[Duration, Field(gt=0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QueueConfig(_Model):
    """The queue in memory, one for each destination."""

    num_consumers: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=10, description="Requests in flight to the destination at once."
    )
    queue_size: PositiveSize = Field(
        default=64 * MIB,
        description="The most bytes held in memory: in flight, waiting, and on their way to the disk.",
    )
    hold: PositiveDuration = Field(
        default=1.0,
        description=(
            "How long a sender waits for its request to be delivered before the request goes to disk "
            "(and is acknowledged) or, without storage, is handed back as retryable. Keep it well below the "
            "senders' timeouts (10 s by default in the SDKs)."
        ),
    )
    batch_size: ByteSize = Field(
        default=MIB,
        description="When requests wait, small ones are joined up to this size; 0 never joins.",
    )


class TlsConfig(_Model):
    """TLS towards the destination."""

    insecure: bool = Field(
        default=False,
        description="Allow plain text to a host other than this one. Loopback needs no permission.",
    )
    ca_file: Path | None = Field(default=None, description="PEM certificates to trust; unset: the system's.")
    cert_file: Path | None = Field(default=None, description="Our certificate (PEM), for mutual TLS.")
    key_file: Path | None = Field(default=None, description="The private key (PEM) of cert_file.")
    server_name_override: str | None = Field(
        default=None,
        description="The name to expect in the destination's certificate, if not the endpoint's host.",
    )

    @model_validator(mode="after")
    def _pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together: give both or neither")
        if self.insecure and self.wanted:
            raise ValueError("insecure: true means plain text, so no other tls setting may be given")
        return self

    @property
    def wanted(self) -> bool:
        """Whether a setting was given that makes sense with TLS only."""
        return bool(self.ca_file or self.cert_file or self.server_name_override)


class KeepaliveConfig(_Model):
    """HTTP/2 pings that find out a dead connection."""

    time: PositiveDuration = Field(
        default=300.0,
        description="Ping after so long without traffic, while requests are in flight. Servers close on more "
        "than one in 5 minutes unless told otherwise.",
    )
    timeout: PositiveDuration = Field(
        default=20.0, description="The connection is dead after so long without an answer."
    )


class ExporterConfig(_Model):
    """What both transports share."""

    timeout: PositiveDuration = Field(default=5.0, description="One try is given up after this.")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="Sent with each request; values are never printed."
    )
    retry_on_failure: RetryConfig = Field(default=RetryConfig(), description="Waits between tries.")
    sending_queue: QueueConfig = Field(default=QueueConfig(), description="The queue in memory.")
    tls: TlsConfig = Field(default=TlsConfig(), description="TLS towards the destination.")
    max_request_size: PositiveSize = Field(
        default=4 * MIB,
        description="The destination's limit on a request, uncompressed. Larger requests are split; a single "
        "span above it is dropped and counted.",
    )


class GrpcExporterConfig(ExporterConfig):
    """`otlp`: OTLP over gRPC."""

    endpoint: EndpointText = Field(
        default=Endpoint("127.0.0.1", 14317),
        description='"host:port"; plain text on loopback, TLS elsewhere.',
    )
    compression: Literal["auto", "gzip", "none"] = Field(
        default="auto", description="auto: none to this machine, gzip to others (about 36 ms of CPU a MB)."
    )
    keepalive: KeepaliveConfig = Field(default=KeepaliveConfig(), description="HTTP/2 pings.")

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return not self.tls.insecure and (self.tls.wanted or not self.endpoint.loopback)


def _http_endpoint(value: str) -> str:
    url = TypeAdapter(AnyHttpUrl).validate_python(value)
    if url.query or url.fragment:
        raise ValueError(
            "the endpoint is a base URL: /v1/traces, /v1/metrics and /v1/logs are appended to it"
        )
    return str(url).rstrip("/")


class HttpExporterConfig(ExporterConfig):
    """`otlphttp`: OTLP over HTTP/1.1, protobuf."""

    endpoint: Annotated[str, AfterValidator(_http_endpoint)] = Field(
        default="http://127.0.0.1:14318",
        description="Base URL; /v1/traces, /v1/metrics and /v1/logs are appended.",
        validate_default=True,
    )
    encoding: Literal["proto"] = Field(default="proto", description="The request's encoding.")
    compression: Literal["auto", "gzip", "zstd", "none"] = Field(
        default="auto", description="auto: none to this machine, gzip to others."
    )
    max_request_size: PositiveSize = Field(
        default=20 * MIB,
        description="The destination's limit on a request, uncompressed (20 MiB: the Collector's for HTTP).",
    )

    @model_validator(mode="after")
    def _plain_text_is_meant(self) -> Self:
        if not self.secure and not self.loopback and not self.tls.insecure:
            raise ValueError(
                "plain http to another host: use https, or set tls.insecure: true if the network is trusted"
            )
        if self.secure and self.tls.insecure:
            raise ValueError("tls.insecure: true contradicts an https endpoint")
        return self

    @property
    def secure(self) -> bool:
        """Whether TLS is spoken."""
        return self.endpoint.startswith("https://")

    @property
    def loopback(self) -> bool:
        """Whether the destination is this machine."""
        host = AnyHttpUrl(self.endpoint).host or ""
        return Endpoint(host.strip("[]"), 0).loopback


class StorageConfig(_Model):
    """The queue on disk, one sub-directory for each destination."""

    directory: Path = Field(
        description="Made with mode 0700 if missing. It holds telemetry that was not delivered yet, prompts "
        "included if those are forwarded."
    )
    max_size: Annotated[ByteSize, Field(ge=MIB)] = Field(
        default=1024 * MIB, description="The most bytes on disk for each destination."
    )
    max_damaged_size: ByteSize = Field(
        default=128 * MIB,
        description="The most bytes of damaged files kept for a person to look at, for each destination, "
        "beside max_size. The oldest are removed first, and logged; 0 keeps none.",
    )
    when_full: Literal["refuse", "drop_oldest"] = Field(
        default="refuse",
        description="refuse: senders are told to come again later. drop_oldest: the oldest data makes room; "
        "counted, and logged with its time range.",
    )
    fsync: bool = Field(
        default=True,
        description="Wait for the disk before acknowledging, so that a power loss loses nothing either. "
        "Without "
        "it kill -9 still loses nothing, a crash of the machine may.",
    )


def _config_class(name: str) -> type[GrpcExporterConfig | HttpExporterConfig]:
    return HttpExporterConfig if name.partition("/")[0] == "otlphttp" else GrpcExporterConfig


def _by_name(value: Any) -> Any:
    """Choose the transport by the name, as in the Collector: `otlp/backup` is gRPC, `otlphttp/x` HTTP."""
    if not isinstance(value, Mapping):
        return value
    configs: dict[str, GrpcExporterConfig | HttpExporterConfig] = {}
    problems: list[InitErrorDetails] = []
    for name, given in value.items():
        if isinstance(given, GrpcExporterConfig | HttpExporterConfig):
            configs[name] = given
            continue
        if not isinstance(name, str) or not NAME.fullmatch(name):
            problems.append(
                {
                    "type": "value_error",
                    "loc": (str(name),),
                    "input": name,
                    "ctx": {
                        "error": ValueError(
                            'an exporter is called "otlp" or "otlphttp", or one of them with "/" and a name '
                            "of letters, digits, _, . and -"
                        )
                    },
                }
            )
            continue
        try:
            configs[name] = _config_class(name).model_validate({} if given is None else given)
        except ValidationError as error:
            problems.extend(
                {
                    "type": found["type"],
                    "loc": (name, *found["loc"]),
                    "input": found["input"],
                    "ctx": found.get("ctx", {}),
                }
                for found in error.errors(include_url=False)
            )
    if problems:
        raise ValidationError.from_exception_data("exporters", problems)
    return configs


Exporters = Annotated[
    dict[str, GrpcExporterConfig | HttpExporterConfig],
    BeforeValidator(_by_name),
    Field(min_length=1, description="Destinations by name; the part before a slash is the transport."),
]
"""The value of `exporters:`."""


def default_exporters() -> dict[str, GrpcExporterConfig | HttpExporterConfig]:
    """One destination: a Collector on this machine, gRPC, 127.0.0.1:14317."""
    return {"otlp": GrpcExporterConfig()}

"""What users write under `receivers.otlp`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from otel_bridge.listeners.config import AuthConfig, GrpcTlsConfig, TlsConfig
from otel_bridge.units import ByteSize, Duration, Endpoint, EndpointText

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20

PositiveSize = Annotated[ByteSize, Field(gt=0, lt=1 << 31)]
PositiveDuration = Annotated[Duration, Field(gt=0)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeepaliveConfig(_Model):
    """How gRPC connections are kept, probed and ended."""

    time: PositiveDuration = Field(
        7200.0, description="Silence after which the receiver asks whether the peer is still there."
    )
    timeout: PositiveDuration = Field(20.0, description="How long the peer has to answer that.")
    min_client_interval: Duration = Field(
        10.0, description="A client that asks more often than this is cut off."
    )
    max_connection_idle: PositiveDuration | None = Field(
        None, description="A connection without requests for so long is closed; null never closes it."
    )
    max_connection_age: PositiveDuration | None = Field(
        None,
        description="A connection this old is told to reconnect, so that replicas share senders; null never.",
    )
    max_connection_age_grace: PositiveDuration = Field(
        30.0, description="How long requests may still run on a connection that was told to reconnect."
    )


class _Listener(_Model):
    enabled: bool = Field(True, description="Whether this protocol is served.")
    max_request_size: PositiveSize = Field(
        64 * MIB, description="The largest request, in bytes after decompression."
    )
    max_concurrent_requests: Annotated[int, Field(gt=0)] = Field(
        256, description="Requests worked on at once; more are told to come again."
    )
    read_timeout: PositiveDuration = Field(
        30.0, description="How long a client may take to send a request once it has begun."
    )
    auth: AuthConfig | None = Field(None, description="Who may send; null lets everybody in.")


class GrpcConfig(_Listener):
    """OTLP over gRPC."""

    endpoint: EndpointText = Field(Endpoint("127.0.0.1", 4317), description="Where to listen.")
    tls: GrpcTlsConfig | None = Field(None, description="null speaks plaintext.")
    keepalive: KeepaliveConfig = KeepaliveConfig()


class HttpConfig(_Listener):
    """OTLP over HTTP/1.1, protobuf and JSON on the same paths."""

    endpoint: EndpointText = Field(Endpoint("127.0.0.1", 4318), description="Where to listen.")
    tls: TlsConfig | None = Field(None, description="null speaks plaintext.")
    idle_timeout: PositiveDuration = Field(
        120.0, description="A connection without requests for so long is closed."
    )


def _defaults_for_null(value: Any) -> Any:
    """The Collector's `grpc:` with nothing behind it means: with its defaults."""
    return {} if value is None else value


class ProtocolsConfig(_Model):
    """The protocols that are served; one that is left out, or has no keys, has its defaults."""

    grpc: Annotated[GrpcConfig, BeforeValidator(_defaults_for_null)] = GrpcConfig()
    http: Annotated[HttpConfig, BeforeValidator(_defaults_for_null)] = HttpConfig()

    @model_validator(mode="after")
    def _something_served(self) -> Self:
        if not (self.grpc.enabled or self.http.enabled):
            raise ValueError("at least one of grpc and http must be enabled")
        return self


class OtlpReceiverConfig(_Model):
    """Takes OTLP in."""

    protocols: Annotated[ProtocolsConfig, BeforeValidator(_defaults_for_null)] = ProtocolsConfig()

    def warnings(self) -> Iterator[str]:
        """What is allowed but rarely meant, each with the key path that mends it."""
        for name, listener in (("grpc", self.protocols.grpc), ("http", self.protocols.http)):
            if not listener.enabled or listener.endpoint.loopback:
                continue
            path = f"receivers.otlp.protocols.{name}"
            exposed = f"{path}.endpoint is {listener.endpoint}, which other machines reach"
            if listener.tls is None:
                yield f"{exposed}, without TLS: set {path}.tls, or listen on 127.0.0.1"
            if listener.auth is None and (listener.tls is None or listener.tls.client_ca_file is None):
                yield f"{exposed}, without authentication: set {path}.auth or {path}.tls.client_ca_file"

"""The gRPC transport: bytes in, bytes out, no message is built."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

import grpc

from otel_bridge.errors import StartError
from otel_bridge.exporters.otlp.answer import Answer, Failed, read_protobuf, retry_info, shorten
from otel_bridge.model import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from otel_bridge.exporters.otlp.config import GrpcExporterConfig, TlsConfig

RETRYABLE = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
"""Of the OTLP specification; RESOURCE_EXHAUSTED joins them when it carries RetryInfo."""

_METHODS = {
    Signal.TRACES: "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    Signal.METRICS: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    Signal.LOGS: "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
}
_LARGEST_RESPONSE = 4 << 20
_LIMIT_TOLD = re.compile(r"larger than max \(\d+ vs\.? (\d+)\)")


class GrpcSender:
    """Sends to one gRPC endpoint over one HTTP/2 connection."""

    codes: Sequence[str] = tuple(code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK)

    def __init__(self, config: GrpcExporterConfig) -> None:
        self._config = config
        self._metadata = tuple(
            (name.lower(), value.get_secret_value()) for name, value in config.headers.items()
        )
        self._channel: grpc.aio.Channel | None = None
        self._calls: dict[Signal, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}

    async def start(self) -> None:
        """Open the channel; it connects with the first request.

        Raises:
            StartError: a TLS file cannot be read.
        """
        config = self._config
        options: list[tuple[str, str | int]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", _LARGEST_RESPONSE),
            ("grpc.keepalive_time_ms", round(config.keepalive.time * 1000)),
            ("grpc.keepalive_timeout_ms", round(config.keepalive.timeout * 1000)),
            # The waits between tries are ours; gRPC's own (with jitter) must be shorter, or a try that is due
            # would fail without having touched the network.
            ("grpc.initial_reconnect_backoff_ms", 500),
            ("grpc.min_reconnect_backoff_ms", 500),
            ("grpc.max_reconnect_backoff_ms", 3000),
            ("grpc.enable_retries", 0),
        ]
        compressed = config.compression == "gzip" or (
            config.compression == "auto" and not config.endpoint.loopback
        )
        compression = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
        if config.secure:
            if config.tls.server_name_override:
                options.append(("grpc.ssl_target_name_override", config.tls.server_name_override))
            self._channel = grpc.aio.secure_channel(
                str(config.endpoint), _credentials(config.tls), options=options, compression=compression
            )
        else:
            self._channel = grpc.aio.insecure_channel(
                str(config.endpoint), options=options, compression=compression
            )
        self._calls = {
            signal: self._channel.unary_unary(method, None, None) for signal, method in _METHODS.items()
        }

    async def send(self, signal: Signal, payload: bytes) -> Answer:
        """Try once."""
        try:
            body = await self._calls[signal](payload, timeout=self._config.timeout, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            return _failure(error)
        return read_protobuf(signal, body)

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None


def _failure(error: grpc.aio.AioRpcError) -> Failed:
    code = error.code()
    text = error.details() or ""
    asked = None
    trailing = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in trailing:
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            asked = retry_info(value)
    exhausted = code is grpc.StatusCode.RESOURCE_EXHAUSTED
    told = _LIMIT_TOLD.search(text) if exhausted else None
    return Failed(
        code=code.name,
        message=shorten(text),
        retryable=code in RETRYABLE or (exhausted and asked is not None),
        retry_after=asked,
        oversize=exhausted and asked is None,
        limit=int(told[1]) if told else None,
        doubtful=code in RETRYABLE and code is not grpc.StatusCode.UNAVAILABLE,
    )


def _credentials(tls: TlsConfig) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca_file),
        private_key=_read(tls.key_file),
        certificate_chain=_read(tls.cert_file),
    )


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartError(
            f"cannot read the TLS file {path}: {error.strerror}; check the path, and that the "
            "service may read it"
        ) from error

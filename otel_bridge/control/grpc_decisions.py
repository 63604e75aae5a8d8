"""Envoy's ext_authz over gRPC (envoy.service.auth.v3.Authorization/Check).

The messages are declared here with the few fields that are used, by Envoy's published names and numbers.
Unknown fields are passed over, as protobuf does. A test holds them to Envoy's own.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from otel_bridge.control.http_decisions import DecisionMetrics, refusal
from otel_bridge.control.limits.claims import sizes_of
from otel_bridge.control.strategies import HEADER as STRATEGY_HEADER
from otel_bridge.errors import BridgeError, UnauthenticatedError
from otel_bridge.listeners.address import cannot_listen
from otel_bridge.listeners.auth import BearerAuth
from otel_bridge.listeners.tls import Certificates

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto

    from otel_bridge.control.config import GrpcDecisionsConfig
    from otel_bridge.control.decider import Decider
    from otel_bridge.control.decision import Decision
    from otel_bridge.control.questions import Questions
    from otel_bridge.control.strategies import Strategies
    from otel_bridge.telemetry import Telemetry

SETTING = "control.decisions.grpc"
METHOD = "/envoy.service.auth.v3.Authorization/Check"
_OK, _RESOURCE_EXHAUSTED = 0, 8
_OVERWRITE = 2  # HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD


_TEXTS = "map<string, string>"
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "HeaderValue": (("key", 1, "string"), ("value", 2, "string"), ("raw_value", 3, "bytes")),
    "HeaderMap": (("headers", 1, "repeated HeaderValue"),),
    "HttpRequest": (
        ("headers", 3, _TEXTS),
        ("size", 9, "int64"),
        ("body", 11, "bytes"),  # a string to Envoy; what a client sent may be none
        ("raw_body", 12, "bytes"),
        ("header_map", 13, "HeaderMap"),
    ),
    "Request": (("http", 2, "HttpRequest"),),
    "AttributeContext": (("request", 4, "Request"), ("context_extensions", 10, _TEXTS)),
    "CheckRequest": (("attributes", 1, "AttributeContext"),),
    # append_action and HttpStatus.code are enums, which are int32 on the wire.
    "HeaderValueOption": (("header", 1, "HeaderValue"), ("append_action", 3, "int32")),
    "HttpStatus": (("code", 1, "int32"),),
    "DeniedHttpResponse": (
        ("status", 1, "HttpStatus"),
        ("headers", 2, "repeated HeaderValueOption"),
        ("body", 3, "string"),
    ),
    "OkHttpResponse": (("headers", 2, "repeated HeaderValueOption"),),
    "Status": (("code", 1, "int32"), ("message", 2, "string")),
    "CheckResponse": (
        ("status", 1, "Status"),
        ("denied_response", 2, "DeniedHttpResponse"),
        ("ok_response", 3, "OkHttpResponse"),
    ),
}
"""Fields by name, number and type."""
_SCALARS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
}


def _declare() -> tuple[Any, Any]:
    """The classes of CheckRequest and CheckResponse, in a pool of their own."""
    file = FileDescriptorProto(name="otel_bridge/ext_authz.proto", package="ext_authz", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _add_field(message, *field)
    pool = DescriptorPool()
    pool.Add(file)
    request, response = (
        GetMessageClass(pool.FindMessageTypeByName(f"ext_authz.{name}"))
        for name in ("CheckRequest", "CheckResponse")
    )
    return request, response


def _add_field(message: DescriptorProto, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
        return
    field.type = FieldDescriptorProto.TYPE_MESSAGE
    if kind != _TEXTS:
        repeated, _, plain = kind.rpartition(" ")
        field.type_name = f".ext_authz.{plain}"
        if repeated:
            field.label = FieldDescriptorProto.LABEL_REPEATED
        return
    entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, "string")
    _add_field(entry, "value", 2, "string")
    field.type_name = f".ext_authz.{message.name}.{entry.name}"
    field.label = FieldDescriptorProto.LABEL_REPEATED


CheckRequest, CheckResponse = _declare()


class GrpcDecisions:
    """Serves ext_authz."""

    def __init__(
        self,
        config: GrpcDecisionsConfig,
        decider: Decider,
        questions: Questions,
        telemetry: Telemetry,
        strategies: Strategies | None = None,
    ) -> None:
        self._strategies = strategies
        self._config = config
        self._decider = decider
        self._questions = questions
        self._metrics = DecisionMetrics(telemetry, "ext_authz_grpc")
        self._auth: BearerAuth | None = None
        self._server: grpc.aio.Server | None = None
        self.port = config.endpoint.port

    async def start(self) -> None:
        """Listen.

        Raises:
            StartError: the port is taken, or a file cannot be used.
        """
        config = self._config
        self._auth = BearerAuth(config.auth, f"{SETTING}.auth") if config.auth else None
        certificates = Certificates(config.tls, f"{SETTING}.tls") if config.tls else None
        handler = grpc.unary_unary_rpc_method_handler(self._check)
        service, _, name = METHOD.lstrip("/").partition("/")
        server = grpc.aio.server(
            handlers=(grpc.method_handlers_generic_handler(service, {name: handler}),),
            options=[("grpc.so_reuseport", 0)],
        )
        address = str(config.endpoint)
        try:
            if certificates is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, certificates.grpc_credentials())
        except RuntimeError as error:
            raise cannot_listen(config.endpoint, f"{SETTING}.endpoint", None) from error
        await server.start()
        self._server = server

    async def stop(self, deadline: float) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.stop(deadline)
            self._server = None

    async def _check(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        since = time.perf_counter()
        try:
            if self._auth is not None:
                self._auth.check(_authorization(context))
            attributes = CheckRequest.FromString(data).attributes
            http = attributes.request.http
            # What Envoy knows of the size counts where nobody told it in so many words.
            key, trace, claim = self._questions.ask(
                _headers(http), extra={**_sizes(http, self._questions), **attributes.context_extensions}
            )
        except UnauthenticatedError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        except (BridgeError, DecodeError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        decision = await self._decider.decide(key, trace, claim)
        strategy = self._strategies.of(trace)[0] if self._strategies is not None else ""
        answer: bytes = check_response(decision, strategy).SerializeToString()
        self._metrics.answered(decision, since)
        return answer


def check_response(decision: Decision, strategy: str = "") -> Any:
    """What Envoy is told; a strategy goes on to the service."""
    response = CheckResponse()
    if decision.allow:
        response.status.code = _OK
        options = response.ok_response.headers
        if strategy:
            _add(options, STRATEGY_HEADER, strategy)
    else:
        status, content_type, body = refusal(decision)
        response.status.code = _RESOURCE_EXHAUSTED
        response.status.message = decision.reason
        response.denied_response.status.code = status
        response.denied_response.body = body.decode()
        options = response.denied_response.headers
        _add(options, "Content-Type", content_type)
    for name, value in decision.headers().items():
        _add(options, name, value)
    return response


def _add(options: Any, name: str, value: str) -> None:
    option = options.add(append_action=_OVERWRITE)
    option.header.key = name
    option.header.value = value


def _headers(http: Any) -> dict[str, str]:
    """Names in lower case, whichever of its two forms Envoy sent."""
    if http.headers:
        return dict(http.headers)
    return {
        header.key.lower(): header.value or header.raw_value.decode("utf-8", "replace")
        for header in http.header_map.headers
    }


def _sizes(http: Any, questions: Questions) -> dict[str, str]:
    return sizes_of(http.raw_body or http.body, http.size) if questions.limited else {}


def _authorization(context: grpc.aio.ServicerContext[bytes, bytes]) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == "authorization":
            return value if isinstance(value, str) else None
    return None

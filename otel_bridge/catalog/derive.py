"""Metrics made of spans, and what is counted while they are made.

Names, units and buckets are those of the semantic conventions where these have the metric: HTTP, RPC, and
`gen_ai.*` of the GenAI conventions. Those of all spans are the names of the Collector's spanmetrics
connector, whose dashboards therefore work. Where neither has one the name is our own.
"""

from __future__ import annotations

from otel_bridge.catalog.definitions import Attribute, DerivedMetric, Kind, Metric

SERVICE_NAME = Attribute("service.name", "string", "", "The service, of the resource.")
SPAN_NAME = Attribute("span.name", "string", "", "The operation: the span's name.")
SPAN_KIND = Attribute("span.kind", "string", "", "As the protocol spells it: SPAN_KIND_SERVER, ….")
STATUS_CODE = Attribute("status.code", "string", "", "As the protocol spells it: STATUS_CODE_ERROR, ….")
ERROR_TYPE = Attribute("error.type", "string", "", "What failed; _OTHER where a failed span does not say.")
HTTP_METHOD = Attribute("http.request.method", "string", "", "HTTP method.")
HTTP_ROUTE = Attribute("http.route", "string", "", "Matched route.")
HTTP_STATUS = Attribute("http.response.status_code", "int", "", "HTTP status.")
RPC_SYSTEM = Attribute("rpc.system.name", "string", "", "RPC system.")
RPC_METHOD = Attribute("rpc.method", "string", "", "Method, with its service.")
RPC_STATUS = Attribute("rpc.response.status_code", "string", "", "Status of the RPC system.")
GEN_AI_OPERATION = Attribute("gen_ai.operation.name", "string", "", "chat, text_completion, embeddings, ….")
GEN_AI_PROVIDER = Attribute("gen_ai.provider.name", "string", "", "Whose API it is.")
GEN_AI_REQUEST_MODEL = Attribute(
    "gen_ai.request.model", "string", "", "The model asked for, or else the one that enrichment found."
)
GEN_AI_RESPONSE_MODEL = Attribute("gen_ai.response.model", "string", "", "The model that answered.")
GEN_AI_TOKEN_TYPE = Attribute("gen_ai.token.type", "string", "", "input or output.")
CAUSE = Attribute("cause", "string", "", "What happened to the span, in the kernel or on the GPU.")
K8S_POD_NAME = Attribute(
    "k8s.pod.name", "string", "", "The pod; a label of metrics where connectors.derive.dimensions has it."
)
METRIC_OVERFLOW = Attribute(
    "otel.metric.overflow", "bool", "", "True on the series of all that exceeded a metric's limit."
)

_MODEL = (SERVICE_NAME.key, GEN_AI_REQUEST_MODEL.key)
_HTTP = (
    SERVICE_NAME.key,
    HTTP_METHOD.key,
    HTTP_ROUTE.key,
    HTTP_STATUS.key,
    ERROR_TYPE.key,
    GEN_AI_REQUEST_MODEL.key,
)
_RPC = (SERVICE_NAME.key, RPC_SYSTEM.key, RPC_METHOD.key, RPC_STATUS.key, ERROR_TYPE.key)
_CALL = (
    SERVICE_NAME.key,
    GEN_AI_OPERATION.key,
    GEN_AI_PROVIDER.key,
    GEN_AI_REQUEST_MODEL.key,
    GEN_AI_RESPONSE_MODEL.key,
)
_CALL_OUTCOME = (*_CALL, ERROR_TYPE.key)
_CALL_TOKENS = (*_CALL, GEN_AI_TOKEN_TYPE.key)
_SPAN = (SERVICE_NAME.key, SPAN_NAME.key, SPAN_KIND.key, STATUS_CODE.key, GEN_AI_REQUEST_MODEL.key)

_SPAN_SECONDS = (0.002, 0.004, 0.006, 0.008, 0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1, 1.4, 2, 5, 10, 15, 30, 60)
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_CALL_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_TOKEN_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
)
_TOKEN_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TOKENS = tuple(4**power for power in range(14))
_CAUSE_SECONDS = (0.00001, 0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)

DERIVED_SPAN_CALLS = DerivedMetric(
    "traces.span.metrics.calls", Kind.COUNTER, "{call}", "Spans, each once, before sampling.", _SPAN
)
DERIVED_SPAN_DURATION = DerivedMetric(
    "traces.span.metrics.duration",
    Kind.HISTOGRAM,
    "s",
    "Duration of spans, before sampling.",
    _SPAN,
    _SPAN_SECONDS,
)
DERIVED_HTTP_SERVER_DURATION = DerivedMetric(
    "http.server.request.duration",
    Kind.HISTOGRAM,
    "s",
    "Duration of HTTP server requests.",
    _HTTP,
    _REQUEST_SECONDS,
)
DERIVED_HTTP_CLIENT_DURATION = DerivedMetric(
    "http.client.request.duration",
    Kind.HISTOGRAM,
    "s",
    "Duration of HTTP client requests.",
    _HTTP,
    _REQUEST_SECONDS,
)
DERIVED_RPC_SERVER_DURATION = DerivedMetric(
    "rpc.server.call.duration",
    Kind.HISTOGRAM,
    "s",
    "Duration of incoming RPCs.",
    _RPC,
    _REQUEST_SECONDS,
)
DERIVED_RPC_CLIENT_DURATION = DerivedMetric(
    "rpc.client.call.duration",
    Kind.HISTOGRAM,
    "s",
    "Duration of outgoing RPCs.",
    _RPC,
    _REQUEST_SECONDS,
)
DERIVED_CLIENT_DURATION = DerivedMetric(
    "gen_ai.client.operation.duration",
    Kind.HISTOGRAM,
    "s",
    "Duration of calls of a model, as their clients saw it.",
    _CALL_OUTCOME,
    _CALL_SECONDS,
)
DERIVED_CLIENT_TOKENS = DerivedMetric(
    "gen_ai.client.token.usage",
    Kind.HISTOGRAM,
    "{token}",
    "Tokens of a call, as its client was told.",
    _CALL_TOKENS,
    _TOKENS,
)
DERIVED_CLIENT_FIRST_CHUNK = DerivedMetric(
    "gen_ai.client.operation.time_to_first_chunk",
    Kind.HISTOGRAM,
    "s",
    "Time from a streamed call to its first chunk, at the client.",
    _CALL,
    _CALL_SECONDS,
)
DERIVED_SERVER_DURATION = DerivedMetric(
    "gen_ai.server.request.duration",
    Kind.HISTOGRAM,
    "s",
    "Time from a request's arrival at the server to its last token.",
    _CALL_OUTCOME,
    _CALL_SECONDS,
)
DERIVED_SERVER_FIRST_TOKEN = DerivedMetric(
    "gen_ai.server.time_to_first_token",
    Kind.HISTOGRAM,
    "s",
    "Time from a request's arrival at the server to its first token.",
    _CALL,
    _FIRST_TOKEN_SECONDS,
)
DERIVED_SERVER_TOKEN_TIME = DerivedMetric(
    "gen_ai.server.time_per_output_token",
    Kind.HISTOGRAM,
    "s",
    "Time a token after the first one.",
    _CALL,
    _TOKEN_SECONDS,
)
DERIVED_SERVER_QUEUE = DerivedMetric(
    "gen_ai.server.queue.duration",
    Kind.HISTOGRAM,
    "s",
    "Time that a request waited before its first batch.",
    _CALL,
    _FIRST_TOKEN_SECONDS,
)
DERIVED_SERVER_TOKENS = DerivedMetric(
    "gen_ai.server.token.usage",
    Kind.HISTOGRAM,
    "{token}",
    "Tokens that the server read and wrote; one observation a prompt, and one an answer.",
    _CALL_TOKENS,
    _TOKENS,
)
DERIVED_BATCH_SIZE = DerivedMetric(
    "llm.inference.batch_size",
    Kind.HISTOGRAM,
    "{request}",
    "Requests in an inference batch.",
    _MODEL,
    tuple(2**power for power in range(11)),
)
DERIVED_PROMPT_BYTES = DerivedMetric(
    "llm.prompt.len",
    Kind.HISTOGRAM,
    "By",
    "UTF-8 bytes of a prompt's text, as the client or the server has it.",
    (*_MODEL, SPAN_KIND.key),
    tuple(4**power for power in range(2, 13)),
)
DERIVED_CAUSE_TIME = DerivedMetric(
    "traces.span.cause.duration",
    Kind.HISTOGRAM,
    "s",
    "Time that a span lost to one cause; one observation for each span that was hit.",
    (*_MODEL, CAUSE.key),
    _CAUSE_SECONDS,
)
DERIVED_CAUSE_EVENTS = DerivedMetric(
    "traces.span.cause.events",
    Kind.COUNTER,
    "{event}",
    "What happened to spans, by cause.",
    (*_MODEL, CAUSE.key),
)

DERIVED = (
    DERIVED_SPAN_DURATION,
    DERIVED_HTTP_SERVER_DURATION,
    DERIVED_HTTP_CLIENT_DURATION,
    DERIVED_RPC_SERVER_DURATION,
    DERIVED_RPC_CLIENT_DURATION,
    DERIVED_CLIENT_DURATION,
    DERIVED_CLIENT_TOKENS,
    DERIVED_CLIENT_FIRST_CHUNK,
    DERIVED_SERVER_DURATION,
    DERIVED_SERVER_FIRST_TOKEN,
    DERIVED_SERVER_TOKEN_TIME,
    DERIVED_SERVER_QUEUE,
    DERIVED_SERVER_TOKENS,
    DERIVED_BATCH_SIZE,
    DERIVED_PROMPT_BYTES,
    DERIVED_CAUSE_TIME,
    DERIVED_CAUSE_EVENTS,
)
"""What is observed; the number of calls (DERIVED_SPAN_CALLS) is read off their durations."""

DERIVE_SERIES = Metric(
    "otel_bridge_derive_series",
    Kind.GAUGE,
    "{series}",
    "Series of a derived metric, that of the overflow included.",
    ("metric",),
)
DERIVE_OVERFLOW = Metric(
    "otel_bridge_derive_overflow",
    Kind.COUNTER,
    "{observation}",
    "Observations beyond a metric's limit of series; they are in its overflow series.",
    ("metric",),
)
DERIVE_EXPIRED = Metric(
    "otel_bridge_derive_expired_series",
    Kind.COUNTER,
    "{series}",
    "Series that were let go of because no span came for them.",
    ("metric",),
)
DERIVE_BAD_VALUES = Metric(
    "otel_bridge_derive_bad_values",
    Kind.COUNTER,
    "{value}",
    "Values not believed: times of a span that are missing or reversed (its duration is taken for 0), and "
    "attributes that are negative or too large (not observed).",
    ("metric", "reason"),
)
DERIVE_REPEATED = Metric(
    "otel_bridge_derive_repeated_calls",
    Kind.COUNTER,
    "{span}",
    "Spans that tell of a call of a model which another span was counted for.",
)
DERIVE_WITHOUT_USAGE = Metric(
    "otel_bridge_derive_calls_without_usage",
    Kind.COUNTER,
    "{call}",
    "Calls of a model that did not fail and tell of no tokens, by the side that tells of them: token metrics "
    "lack them.",
    ("side",),
)
DERIVE_PUSHES = Metric(
    "otel_bridge_derive_pushes",
    Kind.COUNTER,
    "{push}",
    "Pushes of derived metrics by OTLP, by outcome.",
    ("outcome",),
)

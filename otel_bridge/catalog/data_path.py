"""Metrics of receivers, processors and exporters, and the attributes that enrichment and redaction write."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Attribute, Kind, Metric

RECEIVER_ACCEPTED = Metric(
    "otel_bridge_receiver_accepted_items",
    Kind.COUNTER,
    "{item}",
    "Spans, data points and log records taken in and acknowledged.",
    ("transport", "signal"),
)
RECEIVER_REFUSED = Metric(
    "otel_bridge_receiver_refused_items",
    Kind.COUNTER,
    "{item}",
    "Spans, data points and log records refused for good, by reason.",
    ("transport", "signal", "reason"),
)
RECEIVER_REQUESTS = Metric(
    "otel_bridge_receiver_requests",
    Kind.COUNTER,
    "{request}",
    "Requests answered, by status code (the gRPC code's name, or the HTTP status).",
    ("transport", "signal", "code"),
)
RECEIVER_DURATION = Metric(
    "otel_bridge_receiver_request_duration_seconds",
    Kind.HISTOGRAM,
    "s",
    "From the whole request read to its answer: what a sender waits for.",
    ("transport", "signal"),
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
RECEIVER_FAILED = Metric(
    "otel_bridge_receiver_failed_requests",
    Kind.COUNTER,
    "{request}",
    "Requests that failed for a reason nobody foresaw (a bug): answered as retryable, traceback in the log.",
    ("transport",),
)
RECEIVER_MENDED_STRINGS = Metric(
    "otel_bridge_receiver_mended_strings",
    Kind.COUNTER,
    "{string}",
    "Strings that were not UTF-8 on the wire; the bad bytes became U+FFFD.",
)


EXPORTER_SENT = Metric(
    "otel_bridge_exporter_sent_items",
    Kind.COUNTER,
    "{item}",
    "Spans, data points and log records that the destination took.",
    ("exporter", "signal"),
)
EXPORTER_REJECTED = Metric(
    "otel_bridge_exporter_rejected_items",
    Kind.COUNTER,
    "{item}",
    "Items that the destination refused in a partial success; never sent again.",
    ("exporter", "signal"),
)
EXPORTER_DROPPED = Metric(
    "otel_bridge_exporter_dropped_items",
    Kind.COUNTER,
    "{item}",
    "Items lost for good, by reason.",
    ("exporter", "signal", "reason"),
)
EXPORTER_SEND_FAILED = Metric(
    "otel_bridge_exporter_send_failures",
    Kind.COUNTER,
    "{request}",
    "Tries that failed, by status code; a failed try is not a loss.",
    ("exporter", "signal", "code"),
)
EXPORTER_QUEUE_BYTES = Metric(
    "otel_bridge_exporter_queue_bytes",
    Kind.GAUGE,
    "By",
    "Bytes waiting for the destination, by where they wait.",
    ("exporter", "place"),
)
EXPORTER_QUEUE_REQUESTS = Metric(
    "otel_bridge_exporter_queue_requests",
    Kind.GAUGE,
    "{request}",
    "Requests waiting for the destination, by where they wait.",
    ("exporter", "place"),
)
EXPORTER_QUEUE_CAPACITY = Metric(
    "otel_bridge_exporter_queue_capacity_bytes",
    Kind.GAUGE,
    "By",
    "The most bytes that may wait, by where they wait.",
    ("exporter", "place"),
)
EXPORTER_REFUSED = Metric(
    "otel_bridge_exporter_enqueue_failed_requests",
    Kind.COUNTER,
    "{request}",
    "Requests turned away because the queue was full; their senders were told to come again.",
    ("exporter",),
)
EXPORTER_DURATION = Metric(
    "otel_bridge_exporter_send_duration_seconds",
    Kind.HISTOGRAM,
    "s",
    "One try, from handing the request to the transport to its answer.",
    ("exporter", "signal"),
    RECEIVER_DURATION.buckets,
)


PROCESSOR_INCOMING = Metric(
    "otel_bridge_processor_incoming_items",
    Kind.COUNTER,
    "{item}",
    "Spans that entered the processors.",
)
PROCESSOR_OUTGOING = Metric(
    "otel_bridge_processor_outgoing_items",
    Kind.COUNTER,
    "{item}",
    "Spans that left the processors.",
)
PROCESSOR_DURATION = Metric(
    "otel_bridge_processor_duration_seconds",
    Kind.HISTOGRAM,
    "s",
    "Time that one request spent in one step.",
    ("step",),
    (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5),
)


ENRICH_RESOLVED = Metric(
    "otel_bridge_enrich_resolved_spans",
    Kind.COUNTER,
    "{span}",
    "Spans that got a target attribute, by target and by the source that won.",
    ("target", "source"),
)
ENRICH_BAD_VALUES = Metric(
    "otel_bridge_enrich_bad_values",
    Kind.COUNTER,
    "{value}",
    "Values that were found and not used, by target and reason.",
    ("target", "reason"),
)
ENRICH_CONFLICTS = Metric(
    "otel_bridge_enrich_conflicts",
    Kind.COUNTER,
    "{span}",
    "Spans where two vocabularies disagreed on one fact; the current name won.",
    ("target",),
)

LLM_MODEL_ID = Attribute(
    "llm.model.id", "string", "", "The model that the request asked for or was served by."
)
LLM_PROMPT_LEN = Attribute("llm.prompt.len", "int", "By", "UTF-8 bytes of the prompt's text.")
LLM_BATCH_SIZE = Attribute("llm.inference.batch_size", "int", "{request}", "Requests in the inference batch.")
GEN_AI_SERVER_QUEUE_TIME = Attribute(
    "gen_ai.server.queue.duration", "double", "s", "Time that the request waited before its first batch."
)
GEN_AI_SERVER_PREFILL_TIME = Attribute(
    "gen_ai.server.prefill.duration", "double", "s", "Time in the model until the first token."
)
GEN_AI_SERVER_DECODE_TIME = Attribute(
    "gen_ai.server.decode.duration", "double", "s", "Time in the model after the first token."
)
GEN_AI_SERVER_INFERENCE_TIME = Attribute(
    "gen_ai.server.inference.duration", "double", "s", "Time in the model, prefill and decode."
)
GEN_AI_SERVER_REQUEST_DURATION = Attribute(
    "gen_ai.server.request.duration", "double", "s", "Time from the request's arrival to its last token."
)
GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN = Attribute(
    "gen_ai.server.time_per_output_token", "double", "s", "Time a token after the first one."
)
ENRICH_SOURCE_TEMPLATE = "otel_bridge.enrich.{target}.source"
"""Which source won; written only when `processors.enrich.explain` is on."""


REDACT_ATTRIBUTES = Metric(
    "otel_bridge_redact_attributes",
    Kind.COUNTER,
    "{attribute}",
    "Attributes that did not leave as they came: dropped, hashed, masked, or truncated.",
    ("action",),
)
REDACT_PATTERN_HITS = Metric(
    "otel_bridge_redact_pattern_hits",
    Kind.COUNTER,
    "{match}",
    "Credentials and personal data masked, by pattern.",
    ("pattern",),
)
TRUNCATED_TEMPLATE = "otel_bridge.truncated.{key}"
"""Beside an attribute that was cut to the limit: its bytes before that (int)."""

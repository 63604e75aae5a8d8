"""Every metric and attribute name of the bridge, with unit and description, written once.

Own metrics mirror the Collector's, with `otel_bridge_` for `otelcol_` and items for spans where a metric
concerns every signal. Prometheus adds `_total` to counters.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """How a metric behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Attributes:
        name: as Prometheus shows it, without a counter's `_total`.
        kind: counter, gauge or histogram.
        unit: UCUM ("s", "By", "{span}").
        description: one sentence.
        labels: label names, all of bounded cardinality.
        buckets: upper bounds of a histogram, in `unit`.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Attribute:
    """One span attribute that the bridge reads or writes."""

    key: str
    type: str
    unit: str
    description: str


# --- receivers -----------------------------------------------------------------------------------

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

# --- exporters -----------------------------------------------------------------------------------

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

# --- processors ----------------------------------------------------------------------------------

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

# --- enrichment ----------------------------------------------------------------------------------

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

# --- redaction -----------------------------------------------------------------------------------

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

# --- kernel events on spans ----------------------------------------------------------------------

JOIN_EVENTS = Metric(
    "otel_bridge_join_events",
    Kind.COUNTER,
    "{event}",
    "Kernel events by what became of them: joined (by how the span was found), stale (outside their span's "
    "time), expired, evicted.",
    ("probe", "outcome"),
)
JOIN_SPANS = Metric(
    "otel_bridge_join_spans",
    Kind.COUNTER,
    "{span}",
    "Spans that were looked up while events waited, by whether they had some.",
    ("outcome",),
)
JOIN_WAITING_BYTES = Metric(
    "otel_bridge_join_waiting_bytes", Kind.GAUGE, "By", "Bytes of kernel events that wait for their span."
)
JOIN_WAITING_EVENTS = Metric(
    "otel_bridge_join_waiting_events", Kind.GAUGE, "{event}", "Kernel events that wait for their span."
)

NETWORK_LOCAL_ADDRESS = Attribute("network.local.address", "string", "", "Local address of the socket.")
NETWORK_LOCAL_PORT = Attribute("network.local.port", "int", "", "Local port of the socket.")
NETWORK_PEER_ADDRESS = Attribute("network.peer.address", "string", "", "Remote address of the socket.")
NETWORK_PEER_PORT = Attribute("network.peer.port", "int", "", "Remote port of the socket.")

KERNEL_MATCH = Attribute(
    "kernel.match",
    "string",
    "",
    "How the span of an event was found: thread and socket are exact; header and process say how far to "
    "trust them. On a span: the least exact among its events.",
)
KERNEL_USER_EVENTS = Attribute(
    "kernel.user.events", "int", "{event}", "Events of the functions that kernel.probes.user watches."
)
KERNEL_USER_PREFIX = "kernel.user."
"""Beginning of the names of user probes' span events, and of their fields' keys."""

KERNEL_DURATION = Attribute("kernel.duration", "int", "ns", "How long the occurrence took.")
KERNEL_ERROR = Attribute("kernel.error", "int", "", "Error number of the occurrence.")
KERNEL_PID = Attribute("kernel.pid", "int", "", "Process, as the initial pid namespace counts.")
KERNEL_TID = Attribute("kernel.tid", "int", "", "Thread, as the initial pid namespace counts.")
KERNEL_EVENTS_DROPPED = Attribute(
    "kernel.events.dropped", "int", "{event}", "Occurrences counted on the span but not written as events."
)
KERNEL_TCP_RETRANSMITS = Attribute("kernel.tcp.retransmits", "int", "{segment}", "TCP segments sent again.")
KERNEL_TCP_RESETS = Attribute("kernel.tcp.resets", "int", "{reset}", "TCP resets sent or received.")
KERNEL_TCP_CONNECT_TIME = Attribute("kernel.tcp.connect.time", "int", "ns", "Time spent connecting.")
KERNEL_TCP_RECEIVE_QUEUE_FULL = Attribute(
    "kernel.tcp.receive_queue_full", "int", "{occurrence}", "How often a receive queue was full."
)
KERNEL_TCP_STATE = Attribute("kernel.tcp.state", "int", "", "TCP state (include/net/tcp_states.h).")
KERNEL_TCP_BYTES = Attribute("kernel.tcp.bytes", "int", "By", "Bytes of the segment.")
KERNEL_TCP_SMOOTHED_RTT = Attribute(
    "kernel.tcp.smoothed_rtt", "int", "us", "Round-trip time of the connection."
)
KERNEL_SCHED_RUN_QUEUE_TIME = Attribute(
    "kernel.sched.run_queue.time", "int", "ns", "Time ready to run and not running."
)
KERNEL_SCHED_RUN_QUEUE_MAX = Attribute("kernel.sched.run_queue.max", "int", "ns", "The longest such wait.")
KERNEL_SCHED_OFF_CPU_TIME = Attribute("kernel.sched.off_cpu.time", "int", "ns", "Time blocked or asleep.")
KERNEL_SCHED_OFF_CPU_MAX = Attribute("kernel.sched.off_cpu.max", "int", "ns", "The longest such wait.")
KERNEL_SCHED_LONG_WAITS = Attribute(
    "kernel.sched.long_waits", "int", "{wait}", "Waits longer than the configured threshold."
)
KERNEL_BLOCK_COUNT = Attribute("kernel.block.requests", "int", "{request}", "Block I/O requests.")
KERNEL_BLOCK_TIME = Attribute("kernel.block.time", "int", "ns", "Their latencies, added up.")
KERNEL_BLOCK_MAX = Attribute("kernel.block.max", "int", "ns", "The longest latency.")
KERNEL_BLOCK_BYTES = Attribute("kernel.block.bytes", "int", "By", "Bytes read and written.")
KERNEL_BLOCK_ERRORS = Attribute("kernel.block.errors", "int", "{request}", "Requests that failed.")
KERNEL_BLOCK_SLOW = Attribute("kernel.block.slow", "int", "{request}", "Requests slower than the threshold.")
KERNEL_BLOCK_QUEUE_DEPTH_MAX = Attribute(
    "kernel.block.queue_depth.max", "int", "{request}", "The device's deepest queue at that time."
)
KERNEL_BLOCK_DEVICE_MAJOR = Attribute("kernel.block.device.major", "int", "", "Major number of the device.")
KERNEL_BLOCK_DEVICE_MINOR = Attribute("kernel.block.device.minor", "int", "", "Minor number of the device.")
KERNEL_MEMORY_OOM_KILLS = Attribute("kernel.memory.oom_kills", "int", "{kill}", "OOM kills of the process.")
KERNEL_MEMORY_LONG_RECLAIMS = Attribute(
    "kernel.memory.long_reclaims", "int", "{reclaim}", "Direct reclaims longer than the threshold."
)
KERNEL_MEMORY_RECLAIM_TIME = Attribute("kernel.memory.reclaim.time", "int", "ns", "Time in direct reclaim.")
KERNEL_MEMORY_RECLAIM_MAX = Attribute("kernel.memory.reclaim.max", "int", "ns", "The longest direct reclaim.")
KERNEL_MEMORY_RECLAIMED_PAGES = Attribute(
    "kernel.memory.reclaimed_pages", "int", "{page}", "Pages freed by direct reclaim."
)
KERNEL_TLS_HANDSHAKE_TIME = Attribute("kernel.tls.handshake.time", "int", "ns", "Time in TLS handshakes.")
KERNEL_TLS_VERSION = Attribute("tls.protocol.version", "string", "", "TLS version agreed on.")
KERNEL_TLS_FD = Attribute("kernel.tls.fd", "int", "", "File descriptor of the connection; absent when none.")
KERNEL_TLS_CALLS = Attribute("kernel.tls.calls", "int", "{call}", "Calls that the handshake took.")

# --- kernel events -------------------------------------------------------------------------------

KERNEL_EVENTS = Metric(
    "otel_bridge_kernel_events",
    Kind.COUNTER,
    "{event}",
    "Kernel events that were read and handed on.",
    ("probe", "kind", "match"),
)
KERNEL_PRODUCED = Metric(
    "otel_bridge_kernel_produced_events",
    Kind.COUNTER,
    "{event}",
    "Kernel events that the programs had to hand over: those read plus those dropped.",
    ("probe",),
)
KERNEL_DROPPED = Metric(
    "otel_bridge_kernel_dropped_events",
    Kind.COUNTER,
    "{event}",
    "Kernel events lost, by reason (full: no room; limited: over the rate limit; malformed: not a record).",
    ("probe", "cpu", "reason"),
)
KERNEL_BAD_CONTEXTS = Metric(
    "otel_bridge_kernel_bad_contexts",
    Kind.COUNTER,
    "{context}",
    "Published contexts not used, by reason (zero: an all-zero id; torn: half written; unreadable).",
    ("probe", "reason"),
)
KERNEL_LOST_STATE = Metric(
    "otel_bridge_kernel_lost_state",
    Kind.COUNTER,
    "{entry}",
    "Things a program could not follow because a table was full.",
    ("probe",),
)
KERNEL_PROBE_LOADED = Metric(
    "otel_bridge_kernel_probe_loaded",
    Kind.GAUGE,
    "{probe}",
    "Whether a probe is at work (1) or not (0).",
    ("probe",),
)
KERNEL_PROGRAM_COST = Metric(
    "otel_bridge_kernel_program_run_seconds",
    Kind.GAUGE,
    "s",
    "Mean time of one run of a program; only with kernel.run_statistics.",
    ("probe", "program"),
)
KERNEL_PROCESSES = Metric(
    "otel_bridge_kernel_followed_processes",
    Kind.GAUGE,
    "{process}",
    "Processes whose threads' spans are known to the kernel.",
)
KERNEL_LIBRARIES = Metric(
    "otel_bridge_kernel_attached_files",
    Kind.GAUGE,
    "{file}",
    "Files whose functions a probe hangs on.",
    ("probe",),
)
KERNEL_CLOCK_ERROR = Metric(
    "otel_bridge_kernel_clock_error_seconds",
    Kind.GAUGE,
    "s",
    "How far off the time of a kernel event may be from the time of spans.",
)
KERNEL_CLOCK_STEPS = Metric(
    "otel_bridge_kernel_clock_steps",
    Kind.COUNTER,
    "{step}",
    "Times the wall clock was set.",
)
KERNEL_DEVICE_REQUESTS = Metric(
    "otel_bridge_kernel_block_requests",
    Kind.COUNTER,
    "{request}",
    "Block I/O requests that ended, by device.",
    ("device",),
)
KERNEL_DEVICE_ERRORS = Metric(
    "otel_bridge_kernel_block_errors",
    Kind.COUNTER,
    "{request}",
    "Block I/O requests that failed, by device.",
    ("device",),
)
KERNEL_DEVICE_LATENCY = Metric(
    "otel_bridge_kernel_block_latency_seconds",
    Kind.COUNTER,
    "s",
    "Time that block I/O requests took from queued to done, summed, by device.",
    ("device",),
)
KERNEL_DEVICE_IN_FLIGHT = Metric(
    "otel_bridge_kernel_block_in_flight",
    Kind.GAUGE,
    "{request}",
    "Block I/O requests queued and not done, by device.",
    ("device",),
)

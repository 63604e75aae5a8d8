"""Metrics of the kernel side: probes, events, clock, devices."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Kind, Metric

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
    "Contexts not used, by reason (zero: an all-zero id; torn: half written; unreadable; header: a malformed "
    "traceparent).",
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
KERNEL_TIME_WAIT_SOCKETS = Metric(
    "otel_bridge_kernel_tcp_time_wait_sockets", Kind.GAUGE, "{socket}", "TCP connections in TIME_WAIT."
)
KERNEL_TIME_WAIT_LIMIT = Metric(
    "otel_bridge_kernel_tcp_time_wait_limit",
    Kind.GAUGE,
    "{socket}",
    "How many TCP connections may be in TIME_WAIT (net.ipv4.tcp_max_tw_buckets).",
)
KERNEL_TIME_WAIT_OVERFLOWS = Metric(
    "otel_bridge_kernel_tcp_time_wait_overflows",
    Kind.COUNTER,
    "{socket}",
    "TCP connections that were closed without TIME_WAIT because too many were in it.",
)
KERNEL_LOCAL_PORTS = Metric(
    "otel_bridge_kernel_tcp_local_ports",
    Kind.GAUGE,
    "{port}",
    "Local ports that connections to one address may use; those in TIME_WAIT hold theirs.",
)
KERNEL_MEMORY_PRESSURE = Metric(
    "otel_bridge_kernel_memory_pressure_ratio",
    Kind.GAUGE,
    "1",
    "Share of the last ten seconds in which some task, or all that could run (full), waited for memory, "
    "by cgroup of the followed processes; / is the machine.",
    ("cgroup", "tasks"),
)
KERNEL_MEMORY_STALLED = Metric(
    "otel_bridge_kernel_memory_stalled_seconds",
    Kind.COUNTER,
    "s",
    "Time in which some task, or all (full), waited for memory, since the bridge looks at the cgroup.",
    ("cgroup", "tasks"),
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

"""What the kernel probes see, and how well they see."""

from __future__ import annotations

from dashboards.queries.promql import Query, highest, or_zero, rate, summed
from otel_bridge import catalog

_PROBE = ("probe",)


def _events(*kinds: str) -> Query:
    any_of = "|".join(kinds)
    kind = f'=~"{any_of}"'
    return Query(or_zero(rate(catalog.KERNEL_EVENTS, by=("kind",), kind=kind)), "{{kind}}")


RETRANSMITS = _events("tcp_retransmit", "tcp_reset_sent", "tcp_reset_received")
STALLS = _events("tcp_zero_window", "receive_queue_full", "tcp_connect")
HANDSHAKES = _events("tls_handshake")
WAITS = _events("sched_wait", "sched_sum")
RECLAIM = _events("reclaim", "memory_sum", "oom_kill")
EVENTS = Query(rate(catalog.KERNEL_EVENTS, by=("probe", "kind", "match")), "{{probe}} {{kind}} {{match}}")
LOST_TIME = Query(rate(catalog.DERIVED_CAUSE_TIME, "sum", (catalog.CAUSE.key,)), "{{cause}}")
MEMORY_PRESSURE = Query(
    highest(catalog.KERNEL_MEMORY_PRESSURE, ("instance", "cgroup", "tasks")),
    "{{instance}} {{cgroup}} {{tasks}}",
)
MEMORY_STALLED = Query(rate(catalog.KERNEL_MEMORY_STALLED, by=("cgroup", "tasks")), "{{cgroup}} {{tasks}}")
BLOCK_REQUESTS = Query(rate(catalog.KERNEL_DEVICE_REQUESTS, by=("device",)), "{{device}}")
BLOCK_LATENCY = Query(
    f"{rate(catalog.KERNEL_DEVICE_LATENCY, by=('device',))}"
    f" / ({rate(catalog.KERNEL_DEVICE_REQUESTS, by=('device',))} > 0)",
    "{{device}}",
)
BLOCK_IN_FLIGHT = Query(summed(catalog.KERNEL_DEVICE_IN_FLIGHT, ("device",)), "{{device}}")
BLOCK_ERRORS = Query(rate(catalog.KERNEL_DEVICE_ERRORS, by=("device",)), "{{device}}")
TIME_WAIT = [
    Query(highest(catalog.KERNEL_TIME_WAIT_SOCKETS, ("instance",)), "in TIME_WAIT"),
    Query(highest(catalog.KERNEL_LOCAL_PORTS, ("instance",)), "local ports"),
    Query(highest(catalog.KERNEL_TIME_WAIT_LIMIT, ("instance",)), "limit"),
]
LOADED = Query(highest(catalog.KERNEL_PROBE_LOADED, ("instance", "probe")), "{{instance}} {{probe}}")
DROPPED = Query(or_zero(rate(catalog.KERNEL_DROPPED, by=("probe", "reason"))), "{{probe}} {{reason}}")
BAD_CONTEXTS = Query(
    or_zero(rate(catalog.KERNEL_BAD_CONTEXTS, by=("probe", "reason"))), "{{probe}} {{reason}}"
)
LOST_STATE = Query(or_zero(rate(catalog.KERNEL_LOST_STATE, by=_PROBE)), "{{probe}}")
PROCESSES = Query(summed(catalog.KERNEL_PROCESSES, ("instance",)), "{{instance}}")
CLOCK_ERROR = Query(highest(catalog.KERNEL_CLOCK_ERROR, ("instance",)), "{{instance}}")

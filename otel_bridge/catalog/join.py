"""What the join counts, and the attributes that kernel events become."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Attribute, Kind, Metric

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

NETWORK_TRANSPORT = Attribute("network.transport", "string", "", "Transport protocol of the socket.")
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
KERNEL_TCP_ZERO_WINDOWS = Attribute(
    "kernel.tcp.zero_windows", "int", "{occurrence}", "How often sending waited for a peer that read nothing."
)
KERNEL_TCP_ZERO_WINDOW_TIME = Attribute(
    "kernel.tcp.zero_window.time", "int", "ns", "Time that sending waited so."
)
KERNEL_RECEIVE_QUEUE_FULL = Attribute(
    "kernel.receive_queue_full",
    "int",
    "{occurrence}",
    "How often a receive queue was full: TCP had the peer wait, other protocols lost a packet.",
)
KERNEL_TCP_STATE = Attribute("kernel.tcp.state", "int", "", "TCP state (include/net/tcp_states.h).")
KERNEL_TCP_SEGMENTS = Attribute(
    "kernel.tcp.segments", "int", "{segment}", "Segments sent again at once; more than one with offload."
)
KERNEL_TCP_BYTES = Attribute("kernel.tcp.bytes", "int", "By", "Bytes of the segment, or that waited.")
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
CODE_STACKTRACE = Attribute(
    "code.stacktrace",
    "string",
    "",
    "Where a long wait was spent, innermost frame first: in the kernel, function+offset (kernel), then in "
    "the program, function+offset (file). Interpreted code shows as its interpreter's frames.",
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
KERNEL_CUDA_EVENTS = Attribute(
    "kernel.cuda.events", "int", "{call}", "CUDA calls that failed or were slower than their threshold."
)
KERNEL_CUDA_OUT_OF_MEMORY = Attribute(
    "kernel.cuda.out_of_memory", "int", "{error}", "Allocations that failed for want of GPU memory."
)
KERNEL_CUDA_SIZE = Attribute("kernel.cuda.size", "int", "By", "Bytes asked for, or copied.")
KERNEL_CUDA_OPERATION = Attribute(
    "kernel.cuda.operation",
    "string",
    "",
    "What was asked for: device, pool, managed, host or virtual memory, free, copy.",
)
KERNEL_CUDA_LAUNCH_GAPS = Attribute(
    "kernel.cuda.launch_gaps", "int", "{gap}", "Gaps between two kernel launches longer than the threshold."
)
KERNEL_CUDA_LAUNCH_GAP_MAX = Attribute("kernel.cuda.launch_gap.max", "int", "ns", "The longest such gap.")
KERNEL_CUDA_ALLOCS = Attribute("kernel.cuda.allocs", "int", "{allocation}", "Allocations asked of CUDA.")
KERNEL_CUDA_ALLOC_BYTES = Attribute(
    "kernel.cuda.alloc.bytes", "int", "By", "Bytes of the allocations that succeeded."
)
KERNEL_CUDA_ALLOC_TIME = Attribute("kernel.cuda.alloc.time", "int", "ns", "Time in allocations.")
KERNEL_CUDA_ALLOC_MAX = Attribute("kernel.cuda.alloc.max", "int", "ns", "The longest allocation.")
KERNEL_CUDA_FREES = Attribute("kernel.cuda.frees", "int", "{free}", "Allocations given back.")
KERNEL_CUDA_COPIES = Attribute("kernel.cuda.copies", "int", "{copy}", "Memory copies asked of CUDA.")
KERNEL_CUDA_COPY_BYTES = Attribute("kernel.cuda.copy.bytes", "int", "By", "Bytes copied.")
KERNEL_CUDA_COPY_TIME = Attribute(
    "kernel.cuda.copy.time", "int", "ns", "Time in the calls; a copy of a stream goes on after its call."
)
KERNEL_DRM_EVICTIONS = Attribute(
    "kernel.drm.evictions",
    "int",
    "{buffer}",
    "Buffers that a GPU's driver moved from its memory to the host's: as a rule to make room for the span.",
)
KERNEL_DRM_EVICTED_BYTES = Attribute("kernel.drm.evicted_bytes", "int", "By", "Bytes of these buffers.")
KERNEL_CUDA_FAILURES = Attribute("kernel.cuda.failures", "int", "{error}", "CUDA calls that failed.")

"""Small words that every layer shares."""

from __future__ import annotations

from enum import Enum, IntEnum


class Signal(Enum):
    """What an OTLP request carries."""

    TRACES = "traces"
    METRICS = "metrics"
    LOGS = "logs"


class ValueType(IntEnum):
    """What an attribute's AnyValue holds; the numbers are the oneof's field numbers in OTLP."""

    EMPTY = 0
    STRING = 1
    BOOL = 2
    INT = 3
    DOUBLE = 4
    ARRAY = 5
    KVLIST = 6
    BYTES = 7


class SpanKind(IntEnum):
    """OTLP's Span.SpanKind."""

    UNSPECIFIED = 0
    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class StatusCode(IntEnum):
    """OTLP's Status.StatusCode."""

    UNSET = 0
    OK = 1
    ERROR = 2


class Reject(IntEnum):
    """Why a single span is refused while the rest of its request is taken."""

    NONE = 0
    TRACE_ID_LENGTH = 1
    TRACE_ID_ZERO = 2
    SPAN_ID_LENGTH = 3
    SPAN_ID_ZERO = 4
    PARENT_ID_LENGTH = 5
    LINK_ID_LENGTH = 6
    TOO_DEEP = 7

    @property
    def reason(self) -> str:
        """The label value of this reason in metrics, and its words in a partial success."""
        return self.name.lower()


class Scope(IntEnum):
    """Where an attribute stands."""

    SPAN = 0
    RESOURCE = 1
    INSTRUMENTATION = 2
    EVENT = 3
    LINK = 4


class KernelEventKind(IntEnum):
    """What happened in the kernel; the numbers are `enum event_kind` in bpf/common/event.h."""

    TCP_RETRANSMIT = 1
    TCP_RESET_SENT = 2
    TCP_RESET_RECEIVED = 3
    TCP_CONNECT = 4
    TCP_ZERO_WINDOW = 5
    RECEIVE_QUEUE_FULL = 6
    SCHED_WAIT = 10
    SCHED_SUM = 11
    BLOCK_IO = 20
    BLOCK_SUM = 21
    OOM_KILL = 30
    RECLAIM = 31
    MEMORY_SUM = 32
    TLS_HANDSHAKE = 40
    USER = 50
    PROCESS_EXEC = 60
    PROCESS_EXIT = 61
    PROCESS_FORK = 62
    CUDA_ALLOC = 70
    CUDA_COPY = 71
    CUDA_LAUNCH_GAP = 72
    CUDA_SUM = 73
    DRM_SUM = 80


class Match(IntEnum):
    """How a kernel event's span was found; a guess is never presented as a fact.

    From the most exact to the least. All but PROCESS come from the kernel (`enum match` in
    bpf/common/event.h). With HEADER the span id is the caller's: the parent of the span that was hit. PROCESS
    is given in user space, to an event of a process that had one span open at that time.
    """

    NONE = 0
    THREAD = 1
    HAND_OVER = 2
    SOCKET = 3
    HEADER = 4
    PROCESS = 5

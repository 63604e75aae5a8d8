/* What every record of the ring buffers begins with. Mirrored by otel_bridge/kernel/records.py.
 *
 * The discriminator comes first and padding is explicit (-Wpadded), so both sides agree on every byte.
 */
#ifndef OTEL_BRIDGE_EVENT_H
#define OTEL_BRIDGE_EVENT_H

#include <linux/types.h>
#include <stddef.h>

enum event_kind {
	EVENT_TCP_RETRANSMIT = 1,
	EVENT_TCP_RESET_SENT = 2,
	EVENT_TCP_RESET_RECEIVED = 3,
	EVENT_TCP_CONNECT = 4,
	EVENT_TCP_ZERO_WINDOW = 5,
	EVENT_RECEIVE_QUEUE_FULL = 6,
	EVENT_SCHED_WAIT = 10,
	EVENT_SCHED_SUM = 11,
	EVENT_BLOCK_IO = 20,
	EVENT_BLOCK_SUM = 21,
	EVENT_OOM_KILL = 30,
	EVENT_RECLAIM = 31,
	EVENT_MEMORY_SUM = 32,
	EVENT_TLS_HANDSHAKE = 40,
	EVENT_USER = 50,
	EVENT_PROCESS_EXEC = 60,
	EVENT_PROCESS_EXIT = 61,
	EVENT_PROCESS_FORK = 62,
	EVENT_CUDA_ALLOC = 70,
	EVENT_CUDA_COPY = 71,
	EVENT_CUDA_LAUNCH_GAP = 72,
	EVENT_CUDA_SUM = 73,
	EVENT_DRM_SUM = 80,
};

/* How the span of an event was found; a guess is never presented as a fact. */
enum match {
	MATCH_NONE = 0, /* no span: user space may still match by process and time */
	MATCH_THREAD = 1, /* the thread's own record */
	MATCH_HAND_OVER = 2, /* the record of the thread that handed over the task, told by the task's number */
	MATCH_SOCKET = 3, /* the record of the thread that last used the socket */
	MATCH_HEADER = 4, /* traceparent in a request that was read; span_id is the caller's */
};

/* The ids are bytes in network order; 64-bit words only make copies cheap. */
struct kernel_event {
	__u16 kind; /* enum event_kind */
	__u8 match; /* enum match */
	__u8 trace_flags; /* W3C */
	__s32 error; /* negative errno or the subject's own code; 0: none */
	__u64 time_ns; /* CLOCK_BOOTTIME, when it ended */
	__u64 duration_ns; /* 0: it has none */
	__u32 tgid; /* process, as the initial pid namespace counts; 0: unknown */
	__u32 tid;
	__u64 trace_id[2];
	__u64 span_id;
};

_Static_assert(sizeof(struct kernel_event) == 56, "mirrored in records.py");
_Static_assert(offsetof(struct kernel_event, kind) == 0, "the discriminator comes first");
_Static_assert(offsetof(struct kernel_event, time_ns) == 8, "mirrored in records.py");
_Static_assert(offsetof(struct kernel_event, trace_id) == 32, "mirrored in records.py");

struct rate_limit {
	__u64 events_per_second; /* per CPU; 0: no limit */
};

#endif

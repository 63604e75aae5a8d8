/* Waiting for a CPU and for anything else, per span. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_SCHED_H
#define OTEL_BRIDGE_SCHED_H

#include "common/event.h"
#include "common/sums.h"

#define STACK_DEPTH 16

/* One long wait: off the CPU until it was woken (off_cpu), then runnable until it ran (run_queue). */
struct sched_wait {
	struct kernel_event event; /* duration: both together */
	__u64 run_queue_ns;
	__u64 off_cpu_ns;
	__u64 user_stack[STACK_DEPTH]; /* return addresses where the wait began, innermost first; 0: the end */
	__u64 kernel_stack[STACK_DEPTH]; /* where in the kernel it waited; the same */
};

_Static_assert(sizeof(struct sched_wait) == 328, "mirrored in records.py");

/* All waits of a thread for a span, one after the other, since the last time the sums were taken. */
struct sched_sum {
	__u64 first_ns; /* CLOCK_BOOTTIME, when the first began */
	__u64 last_ns; /* when the last ended */
	__u64 run_queue_ns;
	__u64 off_cpu_ns;
	__u64 run_queue_max_ns;
	__u64 off_cpu_max_ns;
	__u32 run_queue_count;
	__u32 off_cpu_count;
};

_Static_assert(sizeof(struct sched_sum) == 56, "mirrored in records.py");

struct sched_row {
	struct span_key key;
	struct sched_sum sum;
};

_Static_assert(sizeof(struct sched_row) == 88, "mirrored in records.py");

struct sched_config {
	__u64 run_queue_threshold_ns; /* a single wait this long is an event */
	__u64 off_cpu_threshold_ns;
	__u32 stacks; /* 1: take the user stack where a wait begins, the kernel's when it was long */
	__u32 _pad;
};

#endif

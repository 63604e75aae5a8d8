/* Handing events over: one ring buffer a probe, every record of it the same size.
 *
 * Equal sizes let the reader take whole spans of the ring as an array; a ring of its own lets a probe be
 * swapped, or flooded, without loss for the others.
 */
#ifndef OTEL_BRIDGE_EMIT_BPF_H
#define OTEL_BRIDGE_EMIT_BPF_H

#include "backend.bpf.h"

#include "context.h"
#include "counters.bpf.h"
#include "event.h"

RING(events, 256 * 1024); /* set from configuration */

CONSTANTS(struct rate_limit, limit);

struct rate_window {
	__u64 began_ns;
	__u64 used;
};

MAP(rate_windows, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct rate_window);

#define SECOND_NS 1000000000ull

static __always_inline bool over_limit(__u64 now)
{
	struct rate_window *window;
	__u32 zero = 0;

	if (!CONSTANT(limit, events_per_second))
		return false;
	window = bpf_map_lookup_elem(&rate_windows, &zero);
	if (!window)
		return false;
	if (now - window->began_ns >= SECOND_NS) {
		window->began_ns = now;
		window->used = 0;
	}
	return window->used++ >= CONSTANT(limit, events_per_second);
}

/* Room for one record, or NULL; either way it is counted. The caller fills all of it and submits. */
static __always_inline void *reserve(__u64 size, __u64 now)
{
	void *record;

	count(COUNTER_PRODUCED);
	if (over_limit(now)) {
		count(COUNTER_LIMITED);
		return NULL;
	}
	record = bpf_ringbuf_reserve(&events, size, 0);
	if (!record)
		count(COUNTER_DROPPED);
	return record;
}

static __always_inline void fill(struct kernel_event *event, enum event_kind kind,
				 const struct origin *origin, __u64 now)
{
	event->kind = kind;
	event->match = origin->match;
	event->trace_flags = origin->trace_flags;
	event->error = 0;
	event->time_ns = now;
	event->duration_ns = 0;
	event->tgid = origin->tgid;
	event->tid = origin->tid;
	event->trace_id[0] = origin->trace_id[0];
	event->trace_id[1] = origin->trace_id[1];
	event->span_id = origin->span_id;
}

#endif

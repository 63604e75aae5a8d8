#ifndef OTEL_BRIDGE_COUNTERS_BPF_H
#define OTEL_BRIDGE_COUNTERS_BPF_H

#include "backend.bpf.h"

#include "counters.h"

MAP(counters, BPF_MAP_TYPE_PERCPU_ARRAY, COUNTER_MAX, __u32, __u64);

/* Atomic, although the slot is this CPU's own: an interrupt may count in the middle of an increment. */
static __always_inline void count(enum counter which)
{
	__u32 key = which;
	__u64 *value = bpf_map_lookup_elem(&counters, &key);

	if (value)
		__sync_fetch_and_add(value, 1);
}

#endif

/* Memory pressure that a span feels. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_MEMORY_H
#define OTEL_BRIDGE_MEMORY_H

#include "common/event.h"
#include "common/sums.h"

struct memory_event {
	struct kernel_event event; /* EVENT_OOM_KILL; EVENT_RECLAIM with its duration */
	__u64 reclaimed_pages;
	__u8 memcg; /* 1: the memory cgroup's limit, 0: the machine's memory */
	__u8 comm[16];
	__u8 _pad[7];
};

_Static_assert(sizeof(struct memory_event) == 88, "mirrored in records.py");

/* All reclaim that a span's threads did themselves since the last time the sums were taken. */
struct memory_sum {
	__u64 first_ns; /* CLOCK_BOOTTIME, when the first began */
	__u64 last_ns; /* when the last ended */
	__u64 reclaim_ns;
	__u64 reclaim_max_ns;
	__u64 reclaimed_pages;
	__u32 reclaim_count;
	__u32 _pad;
};

_Static_assert(sizeof(struct memory_sum) == 48, "mirrored in records.py");

struct memory_config {
	__u64 reclaim_threshold_ns; /* a single reclaim this long is an event */
};

#endif

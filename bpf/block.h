/* Block I/O, per span and device. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_BLOCK_H
#define OTEL_BRIDGE_BLOCK_H

#include "common/event.h"
#include "common/sums.h"

enum block_operation {
	BLOCK_READ = 0,
	BLOCK_WRITE = 1,
	BLOCK_OTHER = 2, /* flush, discard, … */
};

/* One slow or failed request. */
struct block_io {
	struct kernel_event event; /* duration: queued until done */
	__u32 major;
	__u32 minor;
	__u32 bytes;
	__u32 queue_depth; /* requests of the device under way when it was queued, itself included */
	__u8 operation; /* enum block_operation */
	__u8 _pad[7];
};

_Static_assert(sizeof(struct block_io) == 80, "mirrored in records.py");

struct block_key {
	struct span_key span;
	__u32 major;
	__u32 minor;
};

/* All requests of a span to a device since the last time the sums were taken. */
struct block_sum {
	__u64 first_ns; /* CLOCK_BOOTTIME, when the first was queued */
	__u64 last_ns; /* when the last was done */
	__u64 latency_ns;
	__u64 latency_max_ns;
	__u64 bytes;
	__u64 queue_depth_max;
	__u32 count;
	__u32 errors;
};

_Static_assert(sizeof(struct block_sum) == 56, "mirrored in records.py");

struct device_key {
	__u32 major;
	__u32 minor;
};

/* What a device went through, spans or not. */
struct block_device_totals {
	__u64 in_flight;
	__u64 in_flight_max;
	__u64 requests;
	__u64 errors;
	__u64 latency_ns;
	__u64 bytes;
};

struct block_config {
	__u64 latency_threshold_ns; /* a single request this slow is an event */
};

#endif

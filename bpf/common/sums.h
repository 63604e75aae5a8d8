/* Keys of what is summed up per span in the kernel. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_SUMS_H
#define OTEL_BRIDGE_SUMS_H

#include <linux/types.h>

struct span_key {
	__u64 trace_id[2];
	__u64 span_id;
};

#endif

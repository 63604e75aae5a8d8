/* Keys of what is summed up per span in the kernel. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_SUMS_H
#define OTEL_BRIDGE_SUMS_H

#include <linux/types.h>

/* Whose a sum is. With MATCH_HEADER the ids are the caller's: what a process does for it is not what the caller does
 * itself, nor what another does for it.
 */
struct span_key {
	__u64 trace_id[2];
	__u64 span_id;
	__u32 tgid;
	__u8 match;
	__u8 trace_flags;
	__u16 _pad;
};

_Static_assert(sizeof(struct span_key) == 32, "mirrored in records.py");

#endif

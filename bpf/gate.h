/* The gate of a network namespace, as the bridge and the kernel see it. */
#ifndef OTEL_BRIDGE_GATE_H
#define OTEL_BRIDGE_GATE_H

#include <linux/types.h>

enum {
	GATE_SLOTS = 64, /* ports of one namespace that have a gate */
	GATE_ALL_PORTS = 0, /* stands for those that have none of their own */
	GATE_KILLS = 8, /* OOM kills and failed allocations that are remembered; a power of two */
};

/* One port's gate, mapped into the bridge's memory: a store is a flip. */
struct gate_slot {
	__u64 until_ns; /* CLOCK_MONOTONIC: shut until then, whoever still lives */
	__u32 admitted_share; /* of new connections while shut, in 2^-32 */
	__u32 trip_kills; /* so many OOM kills or failed allocations within the window shut it; 0: they do not */
	__u64 trip_window_ns;
	__u64 trip_open_ns; /* for how long */
	__u64 _pad[4];
	/* The kernel's: */
	__u64 refused; /* connections */
	__u64 admitted; /* connections, while shut */
	__u64 overruled; /* refused connections that another program had given to a socket before */
	__u64 trips; /* by those */
	__u64 kills; /* all so far */
	__u64 _pad2[3];
	__u64 killed_ns[GATE_KILLS]; /* when the last ones were */
};

_Static_assert(sizeof(struct gate_slot) == 192, "mirrored in control/gate/records.py");

/* Constants of one loaded object. */
struct gate_config {
	__u32 netns; /* inode of the namespace that it guards */
};

_Static_assert(sizeof(struct gate_config) == 4, "mirrored in control/gate/records.py");

#endif

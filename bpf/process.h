/* Processes that begin and end. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_PROCESS_H
#define OTEL_BRIDGE_PROCESS_H

#include "common/event.h"

struct process_event {
	struct kernel_event event; /* EVENT_PROCESS_FORK, EVENT_PROCESS_EXEC, EVENT_PROCESS_EXIT */
	__u32 parent; /* of a fork: the process it was */
	__u32 namespace_pid; /* the process as its own pid namespace counts; 0 at its exit */
	__u32 pid_namespace; /* inode number; 0 at its exit */
	__u8 followed; /* of a fork: it has its parent's thread_layout */
	__u8 _pad[3];
};

_Static_assert(sizeof(struct process_event) == 72, "mirrored in records.py");

#endif

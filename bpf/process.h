/* Processes that begin and end. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_PROCESS_H
#define OTEL_BRIDGE_PROCESS_H

#include "common/event.h"

struct process_event {
	struct kernel_event event; /* EVENT_PROCESS_EXEC, EVENT_PROCESS_EXIT */
	__u8 comm[16];
};

_Static_assert(sizeof(struct process_event) == 72, "mirrored in records.py");

#endif

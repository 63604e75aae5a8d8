/* Tables of rows that are filled one after the other. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_ROWS_H
#define OTEL_BRIDGE_ROWS_H

#include <linux/types.h>

/* How many rows a CPU is given at once: as many as fill whole lines of the cache, each row being whole words. */
enum { ROWS_A_LOT = 32 };

_Static_assert(ROWS_A_LOT == 32, "mirrored in records.py");

/* What a table begins with. It has the first lot to itself: it is read at every row. */
struct rows_head {
	__u64 turn; /* never the same again; a thread that remembers another has no row here */
	__u64 taken; /* rows that belong to CPUs by now, this lot included; may be more than there are */
};

_Static_assert(sizeof(struct rows_head) == 16, "mirrored in records.py");

#endif

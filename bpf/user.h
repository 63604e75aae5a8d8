/* Functions of programs, by configuration. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_USER_H
#define OTEL_BRIDGE_USER_H

#include "common/event.h"

#define USER_FIELDS 6
#define USER_RESULT 0xff

struct user_event {
	struct kernel_event event; /* duration: from call to return, where that was asked for */
	__u32 probe; /* its number in the configuration */
	__u32 _pad;
	__u64 fields[USER_FIELDS];
};

_Static_assert(sizeof(struct user_event) == 112, "mirrored in records.py");

/* Where the value of a field comes from. */
struct user_field {
	__u8 argument; /* 1 to 6; USER_RESULT: what the function returns; 0: there is no such field */
	__u8 size; /* bytes: 1, 2, 4, 8 */
	__u8 is_signed;
	__u8 dereference; /* 1: it is a pointer, the value lies `offset` bytes behind it */
	__s32 offset;
};

/* One configured function. A thread that works on a span can hand it over with a number (a task's, a slot's):
 * another thread that meets the same number in the same group works on the same span.
 */
struct user_probe {
	__u64 threshold_ns; /* calls that take less are no events */
	struct user_field fields[USER_FIELDS];
	__u8 silent; /* 1: it only hands over */
	__u8 gives; /* number of a field, from 1; 0: none */
	__u8 takes;
	__u8 gives_group;
	__u8 takes_group;
	__u8 _pad[3];
};

_Static_assert(sizeof(struct user_probe) == 64, "mirrored in records.py");

#endif

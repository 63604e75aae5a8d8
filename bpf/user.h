/* Functions of programs, by configuration. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_USER_H
#define OTEL_BRIDGE_USER_H

#include "common/event.h"

#define USER_ARGUMENTS 6 /* those that are passed in registers */
#define USER_FIELDS 8
#define USER_STEPS 3
#define USER_RESULT 0xff
#define USER_STACK_DEPTH 0xfe

struct user_event {
	struct kernel_event event; /* duration: from call to return, where that was asked for */
	__u32 probe; /* its number in the configuration */
	__u32 _pad;
	__u64 fields[USER_FIELDS];
};

_Static_assert(sizeof(struct user_event) == 128, "mirrored in records.py");

/* Where the value of a field comes from. */
struct user_field {
	__u8 argument; /* 1 to 6; USER_RESULT: what the function returns; USER_STACK_DEPTH; 0: there is no such field */
	__u8 size; /* bytes: 1, 2, 4, 8 */
	__u8 is_signed;
	__u8 steps; /* it is a pointer that is followed so often, each time `offsets` bytes behind it */
	__s32 offsets[USER_STEPS];
	__u32 stride; /* at the last step, so many bytes farther for each in the field `index` */
	__u8 index; /* number of an earlier field, from 1; 0: none */
	__u8 falls; /* 1: by how much the value fell from call to return */
	__u8 _pad[2];
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

_Static_assert(sizeof(struct user_probe) == 208, "mirrored in records.py");

#endif

/* Sums per span, kept in the kernel: what happens too often to be an event each time.
 *
 * Two tables take turns. The slot `sums` says which one is filled; user space puts the other one there and
 * empties the first. Replacing the map in a slot waits until no program uses the old one (1ae80cf31938,
 * Linux 4.18), so nothing is added to a table that is being emptied, and nothing is lost between the two.
 *
 * A row counts as produced when it is made, and is delivered when it is taken: produced = delivered + dropped
 * holds for sums as it does for events.
 */
#ifndef OTEL_BRIDGE_SUMS_BPF_H
#define OTEL_BRIDGE_SUMS_BPF_H

#include "counters.bpf.h"
#include "context.h"
#include "sums.h"

/* Defines the tables, and sum_of(): a key's row of the one that is filled, empty where it had none; NULL where there is
 * no room.
 */
#define SUMS_OF(key_type, value_type)                                                                         \
	TURNING_MAPS(sums, sums_a, sums_b, BPF_MAP_TYPE_HASH, 0, 16384, key_type, value_type);                 \
                                                                                                               \
	static __always_inline value_type *sum_of(const key_type *key)                                         \
	{                                                                                                      \
		value_type empty = {}, *found;                                                                 \
		__u32 zero = 0;                                                                                \
		void *table = bpf_map_lookup_elem(&sums, &zero);                                               \
		bool made;                                                                                     \
                                                                                                               \
		if (!table)                                                                                    \
			return NULL;                                                                           \
		found = table_lookup(table, key);                                                              \
		if (found)                                                                                     \
			return found;                                                                          \
		made = !table_update(table, key, &empty, BPF_NOEXIST);                                         \
		/* Where it was not made, another CPU has made it meanwhile, or there is no room. */           \
		found = table_lookup(table, key);                                                              \
		if (made || !found)                                                                            \
			count(COUNTER_PRODUCED);                                                               \
		if (!found)                                                                                    \
			count(COUNTER_DROPPED);                                                                \
		return found;                                                                                  \
	}

static __always_inline struct span_key span_key_of(const struct origin *origin)
{
	return (struct span_key){
		.trace_id = {origin->trace_id[0], origin->trace_id[1]},
		.span_id = origin->span_id,
		.tgid = origin->tgid,
		.match = origin->match,
		.trace_flags = origin->trace_flags,
	};
}

static __always_inline void raise_to(__u64 *largest, __u64 value)
{
	if (value > *largest)
		*largest = value;
}

#endif

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

/* Two ways to a row of the table that is filled:
 * - sum_of(): finds it, or makes an empty one; NULL where there is no room.
 * - sum_with(): makes it of a first value, and is NULL; or finds the one there is, for the value to be added. Which of
 *   both is tried first is a matter of time alone. NULL as well where there is no room.
 */
#define SUMS_OF(key_type, value_type)                                                                         \
	TURNING_MAPS(sums, sums_a, sums_b, 16384, key_type, value_type);                                       \
                                                                                                               \
	static __always_inline value_type *row_in(void *table, const key_type *key, const value_type *value,   \
						  bool make_first)                                             \
	{                                                                                                      \
		value_type *found;                                                                             \
                                                                                                               \
		if (!make_first) {                                                                             \
			found = table_lookup(table, key);                                                      \
			if (found)                                                                             \
				return found;                                                                  \
		}                                                                                              \
		if (!table_update(table, key, value, BPF_NOEXIST)) {                                           \
			count(COUNTER_PRODUCED);                                                               \
			return NULL;                                                                           \
		}                                                                                              \
		found = table_lookup(table, key);                                                              \
		if (!found) {                                                                                  \
			count(COUNTER_PRODUCED);                                                               \
			count(COUNTER_DROPPED);                                                                \
		}                                                                                              \
		return found;                                                                                  \
	}                                                                                                      \
                                                                                                               \
	static __always_inline __attribute__((unused)) value_type *sum_with(                                   \
		const key_type *key, const value_type *value, bool make_first)                                 \
	{                                                                                                      \
		__u32 zero = 0;                                                                                \
		void *table = bpf_map_lookup_elem(&sums, &zero);                                               \
                                                                                                               \
		return table ? row_in(table, key, value, make_first) : NULL;                                   \
	}                                                                                                      \
                                                                                                               \
	static __always_inline __attribute__((unused)) value_type *sum_of(const key_type *key)                 \
	{                                                                                                      \
		value_type empty = {}, *found;                                                                 \
		__u32 zero = 0;                                                                                \
		void *table = bpf_map_lookup_elem(&sums, &zero);                                               \
                                                                                                               \
		if (!table)                                                                                    \
			return NULL;                                                                           \
		found = row_in(table, key, &empty, false);                                                     \
		return found ? found : table_lookup(table, key);                                               \
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

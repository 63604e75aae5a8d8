/* Sums per span of which each thread keeps a row of its own: for what happens at every switch, where finding the row of
 * a hash table, or making one, takes longer than all the rest.
 *
 * Two tables take turns as in sums.bpf.h, and rows count as produced and delivered alike. These are arrays that user
 * space has in its memory. A thread knows the row that it filled last; for another span it takes the next one. CPUs are
 * given rows in lots, so that none of them writes to another's lines of the cache.
 */
#ifndef OTEL_BRIDGE_ROWS_BPF_H
#define OTEL_BRIDGE_ROWS_BPF_H

#include "counters.bpf.h"
#include "rows.h"
#include "sums.bpf.h"

/* The rows that a CPU may still fill. */
struct lot {
	__u64 turn; /* of the table that they are in */
	__u64 next;
	__u64 end;
};

/* The row that a thread filled last. */
struct own_row {
	__u64 turn;
	__u32 number;
	__u32 _pad;
};

static __always_inline bool same_key(const struct span_key *one, const struct span_key *other)
{
	return one->span_id == other->span_id && one->trace_id[0] == other->trace_id[0] &&
	       one->trace_id[1] == other->trace_id[1] && one->tgid == other->tgid && one->match == other->match &&
	       one->trace_flags == other->trace_flags;
}

static __always_inline __u64 next_row(struct lot *lot, struct rows_head *head)
{
	if (lot->turn != head->turn || lot->next == lot->end) {
		lot->turn = head->turn;
		lot->next = __sync_fetch_and_add(&head->taken, ROWS_A_LOT);
		lot->end = lot->next + ROWS_A_LOT;
	}
	return lot->next++;
}

/* User space reads them in its memory, and makes them larger or smaller than is said here (5.10). */
enum { ROWS_FLAGS = BPF_F_MMAPABLE | BPF_F_INNER_MAP };

/* Defines the tables, and row_of_span(): the row of a thread and a span. It is new, and all zero but for its key, where
 * `is_new` says so; it is NULL where there is no room. The row type begins with a struct span_key named `key`.
 *
 * Interrupts must be off, as they are at a switch: a CPU has one lot.
 */
#define ROWS_OF(row_type)                                                                                     \
	TURNING_MAPS(sums, sums_a, sums_b, BPF_MAP_TYPE_ARRAY, ROWS_FLAGS, 16384, __u32, row_type);            \
	MAP(lots, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct lot);                                            \
                                                                                                               \
	static __always_inline row_type *row_of_span(struct own_row *own, const struct span_key *key,         \
						      bool *is_new)                                    \
	{                                                                                                      \
		__u32 zero = 0;                                                                                \
		void *table = bpf_map_lookup_elem(&sums, &zero);                                               \
		struct lot *lot = bpf_map_lookup_elem(&lots, &zero);                                           \
		struct rows_head *head = table ? (void *)table_lookup(table, &zero) : NULL;                    \
		row_type *row;                                                                                 \
                                                                                                               \
		*is_new = false;                                                                               \
		if (!head || !lot)                                                                             \
			return NULL;                                                                           \
		if (own->turn == head->turn) {                                                                 \
			row = table_lookup(table, &own->number);                                               \
			if (row && same_key(&row->key, key))                                                   \
				return row;                                                                    \
		}                                                                                              \
		own->turn = head->turn;                                                                        \
		own->number = next_row(lot, head);                                                             \
		count(COUNTER_PRODUCED);                                                                       \
		row = table_lookup(table, &own->number);                                                       \
		if (!row) {                                                                                    \
			count(COUNTER_DROPPED);                                                                \
			return NULL;                                                                           \
		}                                                                                              \
		*is_new = true;                                                                                \
		row->key = *key;                                                                               \
		return row;                                                                                    \
	}

#endif

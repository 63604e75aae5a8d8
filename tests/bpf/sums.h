/* Sums on the host: one table, that takes no turns. To be included before the program. */
#ifndef FAKE_SUMS_H
#define FAKE_SUMS_H

#include "bpf/common/rows.bpf.h"
#include "bpf/common/sums.bpf.h"

#undef TURNING_MAPS
#undef table_lookup
#undef table_update
#define TURNING_MAPS(slot, first, second, kind, flags, room, key_type, value_type)                            \
	MAP(first, kind, FAKE_ROOM, key_type, value_type);                                                     \
	MAP(slot, BPF_MAP_TYPE_ARRAY, 1, __u32, __u64)
#define table_lookup(table, item) bpf_map_lookup_elem(&sums_a, item)
#define table_update(table, item, content, flags) bpf_map_update_elem(&sums_a, item, content, flags)

#endif

/* Sums on the host: one table, that takes no turns. To be included before the program. */
#ifndef FAKE_SUMS_H
#define FAKE_SUMS_H

#include "bpf/common/sums.bpf.h"

#undef SUMS_OF
#define SUMS_OF(key_type, value_type)                                                                         \
	MAP(sums, BPF_MAP_TYPE_HASH, 64, key_type, value_type);                                               \
                                                                                                               \
	static value_type *sum_of(const key_type *key)                                                         \
	{                                                                                                      \
		value_type empty = {};                                                                         \
                                                                                                               \
		bpf_map_update_elem(&sums, key, &empty, BPF_NOEXIST);                                          \
		return bpf_map_lookup_elem(&sums, key);                                                        \
	}

#endif

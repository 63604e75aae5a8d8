/* Tables as OBI makes them, and as it does not: what a test pins, with type information. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

typedef struct obi_ctx_info {
	unsigned char trace_id[16];
	unsigned char span_id[8];
} obi_ctx_info_t;

struct swapped {
	unsigned char span_id[8];
	unsigned char trace_id[16];
};

struct numbers {
	__u64 trace_id[2];
	__u64 span_id;
};

struct pair {
	__u32 pid;
	__u32 tid;
};

typedef __u64 pid_tgid;

#define TABLE(name, kind, key_type, value_type)                                                               \
	struct {                                                                                               \
		__uint(type, kind);                                                                            \
		__uint(max_entries, 1 << 14);                                                                  \
		__type(key, key_type);                                                                         \
		__type(value, value_type);                                                                     \
	} name SEC(".maps")

TABLE(as_obi_does, BPF_MAP_TYPE_LRU_HASH, pid_tgid, obi_ctx_info_t);
TABLE(no_lru, BPF_MAP_TYPE_HASH, pid_tgid, obi_ctx_info_t);
TABLE(other_order, BPF_MAP_TYPE_LRU_HASH, pid_tgid, struct swapped);
TABLE(other_members, BPF_MAP_TYPE_LRU_HASH, pid_tgid, struct numbers);
TABLE(other_key, BPF_MAP_TYPE_LRU_HASH, struct pair, obi_ctx_info_t);
TABLE(other_size, BPF_MAP_TYPE_LRU_HASH, __u32, obi_ctx_info_t);
TABLE(no_structure, BPF_MAP_TYPE_LRU_HASH, pid_tgid, obi_ctx_info_t *[3]);

char LICENSE[] SEC("license") = "GPL";

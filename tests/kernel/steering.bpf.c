/* Gives each new connection of a namespace to one socket, as load balancers do. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} listeners SEC(".maps");

SEC("sk_lookup")
int steer(struct bpf_sk_lookup *lookup)
{
	__u32 first = 0;
	struct bpf_sock *listener = bpf_map_lookup_elem(&listeners, &first);

	if (!listener)
		return SK_PASS;
	bpf_sk_assign(lookup, listener, 0);
	bpf_sk_release(listener);
	return SK_PASS;
}

/* Refuses new connections to ports of one network namespace while the bridge says so, and no longer than it
 * said so.
 */
#include "gate.h"
#include "common/backend.bpf.h"

#include <bpf/bpf_endian.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

CONSTANTS(struct gate_config, config);

/* Which slot a port has. */
MAP(gate_ports, BPF_MAP_TYPE_HASH, GATE_SLOTS, __u32, __u32);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, GATE_SLOTS);
	__type(key, __u32);
	__type(value, struct gate_slot);
} gate_slots SEC(".maps");

enum { CGROUP_DROP = 0, CGROUP_PASS = 1 };

enum { IPV4 = 0x0800, IPV4_OFFSET = 0x1fff, IPV6_NEXT_HEADER = 6, IPV6_LENGTH = 40 };

static __always_inline struct gate_slot *slot_of(__u32 port)
{
	__u32 all = GATE_ALL_PORTS, *number;

	number = bpf_map_lookup_elem(&gate_ports, &port);
	if (!number)
		number = bpf_map_lookup_elem(&gate_ports, &all);
	return number ? bpf_map_lookup_elem(&gate_slots, number) : NULL;
}

/* Whether a new connection may come in; `draw` is any number, equally likely. */
static __always_inline bool admits(struct gate_slot *slot, __u32 draw)
{
	if (!slot || slot->until_ns <= bpf_ktime_get_ns())
		return true;
	if (draw < slot->admitted_share) {
		__sync_fetch_and_add(&slot->admitted, 1);
		return true;
	}
	__sync_fetch_and_add(&slot->refused, 1);
	return false;
}

static __always_inline bool lookup_admits(struct bpf_sk_lookup *lookup)
{
	struct gate_slot *slot;

	if (lookup->protocol != IPPROTO_TCP)
		return true;
	slot = slot_of(lookup->local_port);
	if (admits(slot, bpf_get_prandom_u32()))
		return true;
	/* The kernel prefers a program that chose a socket to one that refuses. */
	if (lookup->sk && slot)
		__sync_fetch_and_add(&slot->overruled, 1);
	return false;
}

/* Where the header of TCP begins; 0 where none does. */
static __always_inline __u32 tcp_offset(struct __sk_buff *packet)
{
	struct iphdr four;
	__u8 next;

	if (packet->protocol == bpf_htons(IPV4)) {
		if (bpf_skb_load_bytes(packet, 0, &four, sizeof(four)) || four.protocol != IPPROTO_TCP ||
		    (four.frag_off & bpf_htons(IPV4_OFFSET)))
			return 0;
		return four.ihl * 4;
	}
	if (bpf_skb_load_bytes(packet, IPV6_NEXT_HEADER, &next, sizeof(next)) || next != IPPROTO_TCP)
		return 0;
	return IPV6_LENGTH;
}

static __always_inline bool packet_admits(struct __sk_buff *packet)
{
	__u32 offset = tcp_offset(packet);
	struct tcphdr header;

	if (!offset || bpf_skb_load_bytes(packet, offset, &header, sizeof(header)) || !header.syn || header.ack)
		return true;
	/* Its sequence number is drawn by the client, and is the same when it asks again. */
	return admits(slot_of(bpf_ntohs(header.dest)), bpf_ntohl(header.seq));
}

static __always_inline void count_kill(struct gate_slot *slot, __u64 now)
{
	__u64 number, first;

	if (!slot->trip_kills || slot->trip_kills > GATE_KILLS)
		return;
	number = __sync_fetch_and_add(&slot->kills, 1);
	slot->killed_ns[number % GATE_KILLS] = now;
	first = slot->killed_ns[(number + 1 - slot->trip_kills) % GATE_KILLS];
	if (!first || now - first > slot->trip_window_ns)
		return;
	__sync_fetch_and_add(&slot->trips, 1);
	if (slot->until_ns < now + slot->trip_open_ns) {
		slot->admitted_share = 0;
		slot->until_ns = now + slot->trip_open_ns;
	}
}

/* Of a process that was killed, or went without what it asked for. */
static __always_inline void ran_out_of_memory(struct task_struct *task)
{
	__u64 now = bpf_ktime_get_ns();
	struct gate_slot *slot;

	if (BPF_CORE_READ(task, nsproxy, net_ns, ns.inum) != CONSTANT(config, netns))
		return;
	for (__u32 number = 0; number < GATE_SLOTS; number++) {
		__u32 key = number;

		slot = bpf_map_lookup_elem(&gate_slots, &key);
		if (slot)
			count_kill(slot, now);
	}
}

/* The kernel answers with a reset, whoever asks. Linux 5.9. */
SEC("sk_lookup")
int gate_lookup(struct bpf_sk_lookup *lookup)
{
	return lookup_admits(lookup) ? SK_PASS : SK_DROP;
}

/* Where no lookup can be attached: the listeners of a control group hear nothing of new connections. */
SEC("cgroup_skb/ingress")
int gate_ingress(struct __sk_buff *packet)
{
	return packet_admits(packet) ? CGROUP_PASS : CGROUP_DROP;
}

/* Before 6.8 there is only a number here, and the victim's namespace cannot be told. */
SEC("tp_btf/mark_victim")
int BPF_PROG(gate_mark_victim, unsigned long victim)
{
	if (victim_is_task())
		ran_out_of_memory((struct task_struct *)victim);
	return 0;
}

/* A library's function that allocates, in any process that maps the library. The cookie is the answer that means
 * failure; 0 is a null pointer. Linux 5.15.
 */
SEC("uretprobe")
int BPF_KRETPROBE(gate_allocation, __u64 answer)
{
	__u64 failure = bpf_get_attach_cookie(ctx);

	if (failure ? (__u32)answer == (__u32)failure : !answer)
		ran_out_of_memory(bpf_get_current_task_btf());
	return 0;
}

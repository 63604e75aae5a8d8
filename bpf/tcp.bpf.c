/* TCP: retransmits, resets, connection attempts with their latency, zero windows. */
#include "tcp.h"
#include "common/emit.bpf.h"
#include "common/senders.bpf.h"
#include "common/socket.bpf.h"
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

CONSTANTS(struct tcp_config, config);

enum {
	ADDRESS_FAMILY_INET = 2,
	ADDRESS_FAMILY_INET6 = 10,
	STATE_ESTABLISHED = 1,
	STATE_SYN_SENT = 2,
	STATE_CLOSE = 7,
	STATE_LISTEN = 10,
};

static __always_inline void map_ipv4(__u8 *to, __be32 address)
{
	__builtin_memset(to, 0, 10);
	to[10] = to[11] = 0xff;
	__builtin_memcpy(to + 12, &address, sizeof(address));
}

static __always_inline void describe_socket(struct tcp_event *record, struct sock *sk)
{
	struct sock_common *common = &sk->__sk_common;
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	if (FIELD(common, skc_family) == ADDRESS_FAMILY_INET) {
		map_ipv4(record->local_address, FIELD(common, skc_rcv_saddr));
		map_ipv4(record->remote_address, FIELD(common, skc_daddr));
	} else {
		BPF_CORE_READ_INTO(&record->local_address, common, skc_v6_rcv_saddr.in6_u.u6_addr8);
		BPF_CORE_READ_INTO(&record->remote_address, common, skc_v6_daddr.in6_u.u6_addr8);
	}
	record->local_port = FIELD(common, skc_num);
	record->remote_port = bpf_ntohs(FIELD(common, skc_dport));
	record->state = FIELD(common, skc_state);
	__builtin_memset(record->_pad, 0, sizeof(record->_pad));
	record->bytes = 0;
	record->smoothed_rtt_us = tcp ? FIELD(tcp, srtt_us) >> 3 : 0;
	record->retransmits = tcp ? FIELD(tcp, total_retrans) : 0;
	record->segments = 0;
}

static __always_inline struct tcp_event *socket_event(enum event_kind kind, struct sock *sk,
						      const struct origin *origin, __u64 now)
{
	struct tcp_event *record = reserve(sizeof(*record), now);

	if (!record)
		return NULL;
	fill(&record->event, kind, origin, now);
	describe_socket(record, sk);
	return record;
}

static __always_inline void simple_event(enum event_kind kind, struct sock *sk)
{
	struct tcp_event *record;
	struct origin origin;

	socket_origin(sk, &origin);
	record = socket_event(kind, sk, &origin, bpf_ktime_get_boot_ns());
	if (record)
		bpf_ringbuf_submit(record, 0);
}

/* SYN and FIN carry no data: they belong to whoever used the socket last. */
static __always_inline void sent_again(struct sock *sk, struct sk_buff *skb)
{
	struct tcp_skb_cb *control = (void *)skb->cb;
	__u32 sequence = BPF_CORE_READ(control, seq);
	struct tcp_event *record;
	struct origin origin;

	if (!FIELD(skb, len) || !segment_origin(sk, sequence, &origin))
		socket_origin(sk, &origin);
	record = socket_event(EVENT_TCP_RETRANSMIT, sk, &origin, bpf_ktime_get_boot_ns());
	if (!record)
		return;
	record->bytes = FIELD(skb, len);
	record->segments = BPF_CORE_READ(control, tcp_gso_segs);
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void connect_began(struct sock *sk)
{
	struct stamp *stamp;
	struct origin origin;

	current_origin(&origin);
	stamp = bpf_sk_storage_get(&sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!stamp) {
		count(COUNTER_LOST_STATE);
		return;
	}
	write_stamp(stamp, &origin);
	stamp->connect_ns = bpf_ktime_get_boot_ns();
}

static __always_inline void connect_ended(struct sock *sk, int state)
{
	struct stamp *stamp = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	__u64 now = bpf_ktime_get_boot_ns();
	struct tcp_event *record;
	struct origin origin = {};
	__u64 took;

	if (!stamp || !stamp->connect_ns)
		return;
	took = now - stamp->connect_ns;
	stamp->connect_ns = 0;
	if (state == STATE_ESTABLISHED && took < CONSTANT(config, connect_threshold_ns))
		return;
	read_stamp(stamp, &origin);
	record = socket_event(EVENT_TCP_CONNECT, sk, &origin, now);
	if (!record)
		return;
	record->state = state;
	record->event.duration_ns = took;
	record->event.error = state == STATE_ESTABLISHED ? 0 : -FIELD(sk, sk_err);
	bpf_ringbuf_submit(record, 0);
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(tcp_retransmit_skb, struct sock *sk, struct sk_buff *skb)
{
	sent_again(sk, skb);
	return 0;
}

SEC("tp_btf/tcp_send_reset")
int BPF_PROG(tcp_send_reset, struct sock *sk)
{
	/* No socket: somebody knocked at a closed port; the knocking side has its own event. */
	if (sk)
		simple_event(EVENT_TCP_RESET_SENT, sk);
	return 0;
}

SEC("tp_btf/tcp_receive_reset")
int BPF_PROG(tcp_receive_reset, struct sock *sk)
{
	simple_event(EVENT_TCP_RESET_RECEIVED, sk);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(inet_sock_set_state, struct sock *sk, int from, int to)
{
	if (FIELD(sk, sk_protocol) != PROTOCOL_TCP)
		return 0;
	/* It is new, at an address that may have been another socket's. */
	if (!STORAGE_GOES_WITH_OWNER && (from == STATE_CLOSE || from == STATE_LISTEN)) {
		bpf_sk_storage_delete(&sockets, sk);
		bpf_sk_storage_delete(&senders, sk);
	}
	if (from == STATE_CLOSE && to == STATE_SYN_SENT)
		connect_began(sk);
	else if (from == STATE_SYN_SENT)
		connect_ended(sk, to);
	return 0;
}

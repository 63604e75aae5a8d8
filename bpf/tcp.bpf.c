/* TCP: retransmits, resets, connection attempts with their latency, zero windows. Also full receive queues. */
#include "tcp.h"
#include "common/emit.bpf.h"
#include "common/senders.bpf.h"
#include "common/socket.bpf.h"
#include <bpf/bpf_endian.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

CONSTANTS(struct tcp_config, config);

enum {
	STATE_ESTABLISHED = 1,
	STATE_SYN_SENT = 2,
	STATE_CLOSE = 7,
	STATE_LISTEN = 10,
	ERROR_NO_MEMORY = 12, /* ENOMEM */
	ERROR_NO_ADDRESS = 99, /* EADDRNOTAVAIL */
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
	record->protocol = FIELD(sk, sk_protocol);
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

static __always_inline void retransmit_event(struct sock *sk, const struct origin *origin, struct sent_again what)
{
	struct tcp_event *record = socket_event(EVENT_TCP_RETRANSMIT, sk, origin, bpf_ktime_get_boot_ns());

	if (!record)
		return;
	record->bytes = what.bytes;
	record->segments = what.segments;
	bpf_ringbuf_submit(record, 0);
}

/* What nobody told of is the span's that sent all bytes it may be of; where several did, nobody's. */
static __always_inline void tell_untold(struct sock *sk, struct tcp_sock *tcp, struct sent_again now)
{
	struct socket_use *use = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	struct sent_again before;
	struct origin origin;

	if (!use || !use->count)
		return;
	before = untold(use, tcp, now);
	if (!before.segments)
		return;
	sender_of(use, before.from, FIELD(tcp, snd_nxt) - 1, &origin);
	retransmit_event(sk, &origin, before);
}

/* SYN and FIN carry no data: they belong to whoever used the socket last. */
static __always_inline void sent_again(struct sock *sk, struct sk_buff *skb)
{
	struct tcp_skb_cb *control = (void *)skb->cb;
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct sent_again now = {
		.bytes = FIELD(skb, len),
		.segments = BPF_CORE_READ(control, tcp_gso_segs),
	};
	struct origin origin;

	if (tcp)
		tell_untold(sk, tcp, now);
	if (!now.bytes || !segment_origin(sk, BPF_CORE_READ(control, seq), &origin))
		socket_origin(sk, &origin);
	retransmit_event(sk, &origin, now);
}

static __always_inline void connect_began(struct sock *sk)
{
	struct socket_use *use;
	struct origin origin;

	current_origin(&origin);
	use = bpf_sk_storage_get(&sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (!use) {
		count(COUNTER_LOST_STATE);
		return;
	}
	use->connect_ns = bpf_ktime_get_boot_ns();
	note_reader(use, &origin, 0);
}

/* The caller alone is told that no local port was left; the socket shows by having none. 0: it was given up. */
static __always_inline int connect_error(struct sock *sk)
{
	int error = FIELD(sk, sk_err);

	return error || FIELD(&sk->__sk_common, skc_num) ? -error : -ERROR_NO_ADDRESS;
}

static __always_inline void connect_ended(struct sock *sk, int state)
{
	struct socket_use *use = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	__u64 now = bpf_ktime_get_boot_ns();
	struct tcp_event *record;
	struct origin origin;
	__u64 took;

	if (!use || !use->connect_ns)
		return;
	took = now - use->connect_ns;
	use->connect_ns = 0;
	/* Where the peer's bytes begin is known by now. */
	used_last_by(use, (__u32)use->last, read_to(sk));
	if (state == STATE_ESTABLISHED && took < CONSTANT(config, connect_threshold_ns))
		return;
	socket_origin(sk, &origin);
	record = socket_event(EVENT_TCP_CONNECT, sk, &origin, now);
	if (!record)
		return;
	record->state = state;
	record->event.duration_ns = took;
	record->event.error = state == STATE_ESTABLISHED ? 0 : connect_error(sk);
	bpf_ringbuf_submit(record, 0);
}

/* What is known of a connection's windows while one of them is zero. */
struct windows {
	__u64 peer_zero_ns; /* since when the peer's is; 0: it is not */
	__u32 own_zero_at; /* the next byte to be received when the own one was last seen zero */
	__u32 own_was_zero;
};

STORAGE(zero_windows, BPF_MAP_TYPE_SK_STORAGE, struct windows);

static __always_inline struct windows *windows_of(struct sock *sk)
{
	struct windows *found = bpf_sk_storage_get(&zero_windows, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!found)
		count(COUNTER_LOST_STATE);
	return found;
}

/* It matters to whose bytes are next to be sent; where there are none, to nobody. */
static __always_inline void peer_window_was_zero(struct sock *sk, struct tcp_sock *tcp, struct windows *windows,
						 int error)
{
	__u32 next = FIELD(tcp, snd_nxt), waiting = FIELD(tcp, write_seq) - next;
	__u64 now = bpf_ktime_get_boot_ns(), took = now - windows->peer_zero_ns;
	struct tcp_event *record;
	struct origin origin;

	windows->peer_zero_ns = 0;
	if (!waiting || took < CONSTANT(config, window_threshold_ns))
		return;
	if (!segment_origin(sk, next, &origin))
		socket_origin(sk, &origin);
	record = socket_event(EVENT_TCP_ZERO_WINDOW, sk, &origin, now);
	if (!record)
		return;
	record->event.duration_ns = took;
	record->event.error = error;
	record->bytes = waiting;
	bpf_ringbuf_submit(record, 0);
}

/* Since when the peer's window has been zero, where the segment that closed it was not seen: what it acknowledged
 * last is what filled its queue. The probe may be younger than that; and some virtual machines hide threads of their
 * own: of what comes in on top of one, the kernel tells nobody.
 */
static __always_inline __u64 closed_unseen(struct tcp_sock *tcp, __u64 now)
{
	__u64 acknowledged_us = FIELD(tcp, delivered_mstamp);

	return acknowledged_us ? now - (bpf_ktime_get_ns() - acknowledged_us * 1000) : now;
}

/* For each segment that comes in: its header tells the peer's window, what was told before is in the socket still. */
static __always_inline void segment_received(struct sock *sk, struct sk_buff *skb)
{
	enum { WINDOW = 14 }; /* where it stands in the header (RFC 9293) */
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct windows *windows;
	__u32 before;
	__u16 window;

	if (!tcp)
		return;
	/* What it acknowledges is still counted as sent and not acknowledged. */
	if (FIELD(tcp, total_retrans))
		tell_untold(sk, tcp, (struct sent_again){});
	/* Peers take back nothing of a window that they told, so it is not zero before that much was sent. Of one that
	 * does, the next segment tells.
	 */
	before = FIELD(tcp, snd_wnd);
	if (before > 2 * (FIELD(tcp, snd_nxt) - FIELD(tcp, snd_una)))
		return;
	if (bpf_probe_read_kernel(&window, sizeof(window), FIELD(skb, data) + WINDOW))
		return;
	if (window && before)
		return;
	windows = windows_of(sk);
	if (!windows)
		return;
	if (before)
		windows->peer_zero_ns = bpf_ktime_get_boot_ns();
	else if (!windows->peer_zero_ns)
		windows->peer_zero_ns = closed_unseen(tcp, bpf_ktime_get_boot_ns());
	if (window)
		peer_window_was_zero(sk, tcp, windows, 0);
}

/* It was given up, or its time ran out, while the peer let nothing through. */
static __always_inline void connection_closed(struct sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct windows *windows;

	if (!tcp)
		return;
	if (FIELD(tcp, total_retrans))
		tell_untold(sk, tcp, (struct sent_again){});
	/* Where it opened unseen, the socket knows. */
	if (FIELD(tcp, snd_wnd))
		return;
	windows = bpf_sk_storage_get(&zero_windows, sk, NULL, 0);
	if (windows && windows->peer_zero_ns)
		peer_window_was_zero(sk, tcp, windows, -FIELD(sk, sk_err));
}

static __always_inline void queue_was_full(struct sock *sk, const struct origin *origin, __u32 bytes, int error)
{
	struct tcp_event *record =
		socket_event(EVENT_RECEIVE_QUEUE_FULL, sk, origin, bpf_ktime_get_boot_ns());

	if (!record)
		return;
	record->bytes = bytes;
	record->event.error = error;
	bpf_ringbuf_submit(record, 0);
}

/* The program takes something out of the queue, and the peer was told not to send: once until more comes in. */
static __always_inline void queue_is_read(struct sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct windows *windows;
	struct origin origin;
	__u32 next;

	if (!tcp || FIELD(tcp, rcv_wnd))
		return;
	windows = windows_of(sk);
	next = FIELD(tcp, rcv_nxt);
	if (!windows || (windows->own_was_zero && windows->own_zero_at == next))
		return;
	windows->own_was_zero = 1;
	windows->own_zero_at = next;
	if (!use_of_socket(sk, &origin))
		socket_origin(sk, &origin);
	queue_was_full(sk, &origin, 0, 0);
}

static __always_inline void datagram_lost(struct sock *sk, __u32 bytes, int error)
{
	struct origin origin;

	socket_origin(sk, &origin);
	queue_was_full(sk, &origin, bytes, error);
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
		bpf_sk_storage_delete(&zero_windows, sk);
	}
	if (from == STATE_CLOSE && to == STATE_SYN_SENT)
		connect_began(sk);
	else if (from == STATE_SYN_SENT)
		connect_ended(sk, to);
	else if (to == STATE_CLOSE)
		connection_closed(sk);
	return 0;
}

SEC("tp_btf/tcp_probe")
int BPF_PROG(tcp_probe, struct sock *sk, struct sk_buff *skb)
{
	segment_received(sk, skb);
	return 0;
}

SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(tcp_rcv_space_adjust, struct sock *sk)
{
	queue_is_read(sk);
	return 0;
}

/* UDP; the packet itself is told by later kernels alone. */
SEC("tp_btf/udp_fail_queue_rcv_skb")
int BPF_PROG(udp_fail_queue_rcv_skb, int error, struct sock *sk)
{
	datagram_lost(sk, 0, error);
	return 0;
}

/* Raw sockets, and whatever else queues whole packets; TCP closes its window instead. */
SEC("tp_btf/sock_rcvqueue_full")
int BPF_PROG(sock_rcvqueue_full, struct sock *sk, struct sk_buff *skb)
{
	datagram_lost(sk, FIELD(skb, len), -ERROR_NO_MEMORY);
	return 0;
}

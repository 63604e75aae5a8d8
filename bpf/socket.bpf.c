/* Notes on sockets what they are used for, and on connections whose bytes they carry. The base of the other probes. */
#include "common/senders.bpf.h"
#include "common/socket.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Programs of `requests`, for processes that publish nothing. */
CALLED(request_received);
CALLED(answer_sent);

static __always_inline bool is_silent(void)
{
	return !publishes(known_of(bpf_get_current_pid_tgid() >> 32));
}

static __always_inline void used(struct sock *sk)
{
	struct origin origin;

	if (!is_internet(sk) || !use_of_socket(sk, &origin))
		return;
	/* TCP itself tells that something was read (socket_origin). */
	if (origin.match == MATCH_NONE && is_tcp(sk))
		return;
	note_use(sk, &origin);
}

/* Before the bytes are sent: they may be lost, and sent again, before the call returns. */
static __always_inline void about_to_send(struct sock *sk)
{
	struct origin origin;

	if (!use_of_socket(sk, &origin))
		return;
	note_sending(sk, &origin);
}

static __always_inline void has_sent(struct sock *sk, int length)
{
	struct origin origin;

	if (!is_tcp(sk) || !use_of_socket(sk, &origin))
		return;
	note_sent(sk, &origin, length);
}

/* Since 6.16 (0f08335ade71) */
SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(tcp_sendmsg_locked, struct sock *sk)
{
	about_to_send(sk);
	return 0;
}

/* The nearest older kernels have, after the bytes were sent. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(tcp_sent, struct sock *sk, int length)
{
	has_sent(sk, length);
	return 0;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(datagram_sent, struct sock *sk)
{
	if (!is_tcp(sk))
		used(sk);
	if (is_silent())
		CALL(ctx, answer_sent);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(sock_recv_length, struct sock *sk)
{
	used(sk);
	if (is_silent())
		CALL(ctx, request_received);
	return 0;
}

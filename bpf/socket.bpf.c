/* Stamps sockets with the span that they are used for. The base of the other probes. */
#include "common/socket.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline void used(struct sock *sk)
{
	struct origin origin;

	if (use_of_socket(sk, &origin))
		stamp_socket(sk, &origin);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length, struct sock *sk)
{
	used(sk);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(sock_recv_length, struct sock *sk)
{
	used(sk);
	return 0;
}

/* Notes on each connection whose bytes it carries, for what happens to them later, outside the sender's thread. */
#include "common/senders.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Before the bytes are sent: they may be lost, and sent again, before the call returns. Since 6.16 (0f08335ade71). */
SEC("tp_btf/tcp_sendmsg_locked")
int BPF_PROG(tcp_sendmsg_locked, struct sock *sk)
{
	sending(sk);
	return 0;
}

/* The nearest older kernels have: the bytes were sent. */
SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length, struct sock *sk, int length)
{
	sent(sk, length);
	return 0;
}

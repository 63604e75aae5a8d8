/* Stamps sockets with the span of the thread that sends or receives. The base of the other probes. */
#include "common/socket.bpf.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

SEC("tp_btf/sock_send_length")
int BPF_PROG(sock_send_length, struct sock *sk)
{
	stamp_socket(sk);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(sock_recv_length, struct sock *sk)
{
	stamp_socket(sk);
	return 0;
}

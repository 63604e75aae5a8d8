/* The span that a socket is used for, kept on the socket: events in softirq have no thread to ask. */
#ifndef OTEL_BRIDGE_SOCKET_BPF_H
#define OTEL_BRIDGE_SOCKET_BPF_H

#include "context.bpf.h"
#include "request.h"

enum {
	ADDRESS_FAMILY_INET = 2,
	ADDRESS_FAMILY_INET6 = 10,
	PROTOCOL_TCP = 6,
};

struct stamp {
	__u64 sequence; /* odd while somebody writes; BCC has no atomic operations on less than 64 bits */
	__u64 connect_ns; /* when the connection attempt began; 0: none under way */
	struct origin origin;
};

/* Shared by all objects that look at sockets; goes with the socket. */
STORAGE(sockets, BPF_MAP_TYPE_SK_STORAGE, struct stamp);

/* Requests that are read, by the cookie of their connection; shared by all objects. */
MAP(http_requests, BPF_MAP_TYPE_LRU_HASH, 16384, __u64, struct http_request);

static __always_inline struct http_request *request_on(__u64 socket)
{
	return bpf_map_lookup_elem(&http_requests, &socket);
}

static __always_inline bool is_internet(struct sock *sk)
{
	unsigned short family = FIELD(&sk->__sk_common, skc_family);

	return family == ADDRESS_FAMILY_INET || family == ADDRESS_FAMILY_INET6;
}

static __always_inline bool is_tcp(struct sock *sk)
{
	return is_internet(sk) && FIELD(sk, sk_protocol) == PROTOCOL_TCP;
}

/* What the running thread uses a socket for. On a server's connection, in a process that publishes nothing, that is
 * the connection's request, whatever the thread is at; else it is the thread's span.
 *
 * False when the process is not followed, so that nothing is to be said about the socket.
 */
static __always_inline bool use_of_socket(struct sock *sk, struct origin *origin)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 known = known_of(FIELD(task, tgid));
	const struct http_request *request;

	if (!may_have_spans(known))
		return false;
	if (known && !publishes(known)) {
		request = request_on(bpf_get_socket_cookie(sk));
		if (request) {
			*origin = request->origin;
			return true;
		}
	}
	span_of_task(known, task, origin);
	return true;
}

/* Two threads may send on one socket at once while a softirq reads; spin locks are closed to tracing
 * programs, so a sequence tells a whole stamp from a torn one. A writer that finds another at work leaves
 * the stamp to it: both are threads that use this socket now.
 */
static __always_inline void write_stamp(struct stamp *stamp, const struct origin *origin)
{
	__u64 sequence = *(volatile __u64 *)&stamp->sequence;

	if (sequence & 1)
		return;
	if (__sync_val_compare_and_swap(&stamp->sequence, sequence, sequence + 1) != sequence)
		return;
	stamp->origin = *origin;
	__sync_fetch_and_add(&stamp->sequence, 1);
}

static __always_inline void read_stamp(struct stamp *stamp, struct origin *origin)
{
	__u64 before, after;

	if (!stamp)
		return;
	before = *(volatile __u64 *)&stamp->sequence;
	*origin = stamp->origin;
	asm volatile("" ::: "memory");
	after = *(volatile __u64 *)&stamp->sequence;
	if ((before & 1) || before != after) {
		count(COUNTER_TORN);
		*origin = (struct origin){};
		return;
	}
	if (origin->match == MATCH_THREAD)
		origin->match = MATCH_SOCKET;
}

/* The socket carries this span from now on, or none. A thread without a span clears the stamp, or the next request
 * on a kept-alive connection would inherit the last one's.
 */
static __always_inline void stamp_socket(struct sock *sk, const struct origin *origin)
{
	__u64 flags = origin->match == MATCH_NONE ? 0 : BPF_SK_STORAGE_GET_F_CREATE;
	struct stamp *stamp = bpf_sk_storage_get(&sockets, sk, NULL, flags);

	if (stamp)
		write_stamp(stamp, origin);
}

/* Who used the socket last; all zero when nobody did that is followed. */
static __always_inline void socket_origin(struct sock *sk, struct origin *origin)
{
	*origin = (struct origin){};
	read_stamp(bpf_sk_storage_get(&sockets, sk, NULL, 0), origin);
}

#endif

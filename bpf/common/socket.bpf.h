/* What a socket is used for, kept on the socket: events in softirq have no thread to ask. */
#ifndef OTEL_BRIDGE_SOCKET_BPF_H
#define OTEL_BRIDGE_SOCKET_BPF_H

#include "context.bpf.h"
#include "request.h"

enum {
	ADDRESS_FAMILY_INET = 2,
	ADDRESS_FAMILY_INET6 = 10,
	PROTOCOL_TCP = 6,
};

enum { SENDERS = 4 }; /* a power of two; older ones are forgotten, and their bytes are nobody's */

/* Who sent some of the bytes that a connection carries. */
struct sender {
	struct origin origin;
	__u32 from; /* sequence number of its first byte */
	__u32 to; /* one past its last; nothing while it is open */
	__u8 open; /* whatever is sent now is its */
	__u8 _pad[7];
};

/* What a connection has sent again so far, by its own account. */
struct sent_again {
	__u64 bytes;
	__u32 segments;
	__u32 from; /* no byte before it is among what is sent again next */
};

enum last_use {
	USED_BY_NOBODY = 0, /* that is known */
	USED_BY_SENDER = 1, /* the last one */
	USED_BY_READER = 2, /* or by who connects; of what is not TCP, by anybody */
};

/* Of thousands of sockets each is used now and then, and has to be fetched from far away each time. So what each send
 * looks at fills one line of the cache, together with the pointer that the kernel keeps before it.
 */
struct socket_use {
	__u64 sending; /* odd while somebody writes the senders; BCC has no atomic operations on less than 64 bits */
	__u64 reading; /* odd while somebody writes the reader */
	__u64 last; /* enum last_use; above it what had been read by then (tcp_sock.copied_seq) */
	__u64 newest_span; /* of the senders */
	struct sent_again told; /* since the first of them */
	__u64 count; /* senders so far: sender_at(count - 1) is the newest */
	struct origin reader;
	__u64 connect_ns; /* when the connection attempt began; 0: none under way */
	struct sender senders[SENDERS];
};

_Static_assert(offsetof(struct socket_use, reader) + sizeof(void *) == 64, "the second line");

/* Shared by all objects that look at sockets; goes with the socket. */
STORAGE(sockets, BPF_MAP_TYPE_SK_STORAGE, struct socket_use);

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

static __always_inline struct sender *sender_at(struct socket_use *use, __u64 number)
{
	return &use->senders[number & (SENDERS - 1)];
}

static __always_inline void used_last_by(struct socket_use *use, enum last_use who, __u32 read_to)
{
	*(volatile __u64 *)&use->last = (__u64)read_to << 32 | who;
}

/* Two threads may use one socket at once while a softirq reads; spin locks are closed to tracing programs, so a
 * sequence tells a whole origin from a torn one. A writer that finds another at work leaves it to it: both are threads
 * that use this socket now.
 */
static __always_inline bool begin_writing(__u64 *changes)
{
	__u64 before = *(volatile __u64 *)changes;

	return !(before & 1) && __sync_val_compare_and_swap(changes, before, before + 1) == before;
}

static __always_inline void end_writing(__u64 *changes)
{
	__sync_fetch_and_add(changes, 1);
}

static __always_inline void note_reader(struct socket_use *use, const struct origin *origin, __u32 read_to)
{
	if (!begin_writing(&use->reading))
		return;
	use->reader = *origin;
	end_writing(&use->reading);
	used_last_by(use, USED_BY_READER, read_to);
}

/* Ends the copying of an origin that began when there were `before` changes: what was copied while somebody wrote is
 * nothing, and the socket told of what a thread is at.
 */
static __always_inline void end_reading(const __u64 *changes, __u64 before, struct origin *origin)
{
	asm volatile("" ::: "memory");
	if (before & 1 || before != *(volatile __u64 *)changes) {
		count(COUNTER_TORN);
		*origin = (struct origin){};
	} else if (origin->match == MATCH_THREAD) {
		origin->match = MATCH_SOCKET;
	}
}

static __always_inline void read_origin(const __u64 *changes, const struct origin *from, struct origin *origin)
{
	__u64 before = *(volatile __u64 *)changes;

	*origin = *from;
	end_reading(changes, before, origin);
}

/* How far a program has read; 0 of what is not TCP. */
static __always_inline __u32 read_to(struct sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	return tcp ? FIELD(tcp, copied_seq) : 0;
}

/* The socket is used for this span from now on, or for none. A thread without a span clears what another one noted, or
 * the next request on a kept-alive connection would inherit the last one's.
 */
static __always_inline void note_use(struct sock *sk, const struct origin *origin)
{
	__u64 flags = origin->match == MATCH_NONE ? 0 : BPF_SK_STORAGE_GET_F_CREATE;
	struct socket_use *use = bpf_sk_storage_get(&sockets, sk, NULL, flags);

	if (use)
		note_reader(use, origin, read_to(sk));
	else if (flags)
		count(COUNTER_LOST_STATE);
}

/* Who used the socket last; all zero when nobody did that is followed. Whoever reads at a span is noted, so when more
 * was read since the last use, somebody did who is at none, and of whom no more is known than the process: most reads
 * of a server are such, and need note nothing.
 */
static __always_inline void socket_origin(struct sock *sk, struct origin *origin)
{
	struct socket_use *use = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	__u64 last;

	*origin = (struct origin){};
	if (!use)
		return;
	last = *(volatile __u64 *)&use->last;
	if ((__u32)last == USED_BY_READER)
		read_origin(&use->reading, &use->reader, origin);
	else if ((__u32)last == USED_BY_SENDER)
		read_origin(&use->sending, &sender_at(use, use->count - 1)->origin, origin);
	if (!use->connect_ns && last >> 32 != read_to(sk))
		*origin = (struct origin){.tgid = origin->tgid};
}

#endif

/* Whose bytes a connection carries, kept on its socket: what is sent again belongs to who sent it first, however
 * many others have used the connection since.
 */
#ifndef OTEL_BRIDGE_SENDERS_BPF_H
#define OTEL_BRIDGE_SENDERS_BPF_H

#include "socket.bpf.h"

enum { SENDERS = 4 }; /* a power of two; older ones are forgotten, and their bytes are nobody's */

struct sender {
	struct origin origin;
	__u32 from; /* sequence number of its first byte */
	__u32 to; /* one past its last; nothing while it is open */
	__u8 open; /* whatever is sent now is its */
	__u8 _pad[7];
};

struct senders {
	__u64 sequence; /* odd while somebody writes; BCC has no atomic operations on less than 64 bits */
	__u64 count; /* so far; the last is at (count - 1) % SENDERS */
	struct sender last[SENDERS];
};

/* Shared by all objects that look at sockets; goes with the socket. */
STORAGE(senders, BPF_MAP_TYPE_SK_STORAGE, struct senders);

static __always_inline bool is_before(__u32 one, __u32 other)
{
	return (__s32)(one - other) < 0;
}

static __always_inline bool same_span(const struct origin *one, const struct origin *other)
{
	return one->span_id == other->span_id && one->trace_id[0] == other->trace_id[0] &&
	       one->trace_id[1] == other->trace_id[1];
}

/* The bytes from `from` on are the origin's: up to `to` if they are sent already, or until another begins.
 *
 * Before a send is told (`open`) the socket is locked, so there is one writer. After a send there may be two at
 * once: the second one leaves its bytes to nobody.
 */
static __always_inline void note_sender(struct senders *all, const struct origin *origin, __u32 from, __u32 to,
					bool open)
{
	struct sender *last = &all->last[(all->count - 1) & (SENDERS - 1)];
	__u64 sequence = *(volatile __u64 *)&all->sequence;

	if (all->count && same_span(&last->origin, origin)) {
		last->to = to;
		return;
	}
	if (sequence & 1 || __sync_val_compare_and_swap(&all->sequence, sequence, sequence + 1) != sequence)
		return;
	last = &all->last[all->count & (SENDERS - 1)];
	last->origin = *origin;
	last->from = from;
	last->to = to;
	last->open = open;
	all->count++;
	__sync_fetch_and_add(&all->sequence, 1);
}

/* Who sent the byte; all zero when that is not known. */
static __always_inline void sender_of(const struct senders *all, __u32 byte, struct origin *origin)
{
	__u64 sequence = *(volatile __u64 *)&all->sequence, count_ = all->count;
	bool newest = true;

	*origin = (struct origin){};
	for (__u32 i = 1; i <= SENDERS && i <= count_; i++) {
		const struct sender *sender = &all->last[(count_ - i) & (SENDERS - 1)];

		if (!is_before(byte, sender->from)) {
			/* An older one's bytes end where the next one's begin. */
			if (!newest || sender->open || is_before(byte, sender->to))
				*origin = sender->origin;
			break;
		}
		newest = false;
	}
	asm volatile("" ::: "memory");
	if (sequence & 1 || sequence != *(volatile __u64 *)&all->sequence) {
		count(COUNTER_TORN);
		*origin = (struct origin){};
	} else if (origin->match == MATCH_THREAD) {
		origin->match = MATCH_SOCKET;
	}
}

static __always_inline void note_sending(struct sock *sk, const struct origin *origin)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	/* The first sender is kept also when it has no span: its bytes are not the next one's. */
	struct senders *all = bpf_sk_storage_get(&senders, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (tcp && all)
		note_sender(all, origin, FIELD(tcp, write_seq), 0, true);
}

static __always_inline void note_sent(struct sock *sk, const struct origin *origin, int length)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct senders *all;

	if (!tcp || length <= 0)
		return;
	all = bpf_sk_storage_get(&senders, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (all)
		note_sender(all, origin, FIELD(tcp, write_seq) - length, FIELD(tcp, write_seq), false);
}

/* The origin of a segment that is sent again; false when nobody is known to have sent on this socket. */
static __always_inline bool segment_origin(struct sock *sk, __u32 sequence, struct origin *origin)
{
	struct senders *all = bpf_sk_storage_get(&senders, sk, NULL, 0);

	if (!all || !all->count)
		return false;
	sender_of(all, sequence, origin);
	return true;
}

#endif

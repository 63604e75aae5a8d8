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

/* What a connection has sent again so far, by its own account. */
struct sent_again {
	__u64 bytes;
	__u32 segments;
	__u32 from; /* no byte before it is among what is sent again next */
};

struct senders {
	__u64 sequence; /* odd while somebody writes; BCC has no atomic operations on less than 64 bits */
	__u64 count; /* so far; the last is at (count - 1) % SENDERS */
	struct sent_again told; /* since the first of them */
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

/* Who sent all bytes from `first` to `byte`; all zero when that is not known, or several did. */
static __always_inline void sender_of(const struct senders *all, __u32 first, __u32 byte, struct origin *origin)
{
	__u64 sequence = *(volatile __u64 *)&all->sequence, count_ = all->count;
	bool newest = true;

	*origin = (struct origin){};
	for (__u32 i = 1; i <= SENDERS && i <= count_; i++) {
		const struct sender *sender = &all->last[(count_ - i) & (SENDERS - 1)];

		if (!is_before(byte, sender->from)) {
			/* An older one's bytes end where the next one's begin. */
			if (!is_before(first, sender->from) &&
			    (!newest || sender->open || is_before(byte, sender->to)))
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

static __always_inline struct senders *senders_on(struct sock *sk, const struct tcp_sock *tcp)
{
	struct senders *all = bpf_sk_storage_get(&senders, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!all)
		return NULL;
	if (!all->count) {
		all->told.bytes = FIELD(tcp, bytes_retrans);
		all->told.segments = FIELD(tcp, total_retrans);
	}
	/* All that was sent again so far is told: what comes next begins with what is not acknowledged now. */
	if (all->told.segments == FIELD(tcp, total_retrans))
		all->told.from = FIELD(tcp, snd_una);
	return all;
}

static __always_inline void note_sending(struct sock *sk, const struct origin *origin)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct senders *all;

	if (!tcp)
		return;
	/* The first sender is kept also when it has no span: its bytes are not the next one's. */
	all = senders_on(sk, tcp);
	if (all)
		note_sender(all, origin, FIELD(tcp, write_seq), 0, true);
}

static __always_inline void note_sent(struct sock *sk, const struct origin *origin, int length)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	struct senders *all;

	if (!tcp || length <= 0)
		return;
	all = senders_on(sk, tcp);
	if (all)
		note_sender(all, origin, FIELD(tcp, write_seq) - length, FIELD(tcp, write_seq), false);
}

/* What was sent again and nobody told of, besides `now`, which is being told; it counts as told from here on.
 *
 * Some virtual machines hide threads of their own: of what a timer does on top of one, the kernel tells neither
 * perf, ftrace nor BPF. Before 6.16 it did not tell of a segment that could not be sent either.
 */
static __always_inline struct sent_again untold(struct senders *all, const struct tcp_sock *tcp, struct sent_again now)
{
	struct sent_again found = {.from = all->told.from};

	found.segments = FIELD(tcp, total_retrans) - all->told.segments - now.segments;
	found.bytes = FIELD(tcp, bytes_retrans) - all->told.bytes - now.bytes;
	all->told.segments += found.segments + now.segments;
	all->told.bytes += found.bytes + now.bytes;
	all->told.from = FIELD(tcp, snd_una);
	return found;
}

/* The origin of a segment that is sent again; false when nobody is known to have sent on this socket. */
static __always_inline bool segment_origin(struct sock *sk, __u32 sequence, struct origin *origin)
{
	struct senders *all = bpf_sk_storage_get(&senders, sk, NULL, 0);

	if (!all || !all->count)
		return false;
	sender_of(all, sequence, sequence, origin);
	return true;
}

#endif

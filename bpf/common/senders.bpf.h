/* Whose bytes a connection carries, kept on its socket: what is sent again belongs to who sent it first, however
 * many others have used the connection since.
 */
#ifndef OTEL_BRIDGE_SENDERS_BPF_H
#define OTEL_BRIDGE_SENDERS_BPF_H

#include "socket.bpf.h"

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
static __always_inline void add_sender(struct socket_use *use, const struct origin *origin, __u32 from, __u32 to,
				       bool open)
{
	struct sender *newest;

	if (use->count && use->newest_span == origin->span_id) {
		newest = sender_at(use, use->count - 1);
		if (same_span(&newest->origin, origin)) {
			newest->to = to;
			return;
		}
	}
	if (!begin_writing(&use->sending))
		return;
	newest = sender_at(use, use->count);
	newest->origin = *origin;
	newest->from = from;
	newest->to = to;
	newest->open = open;
	use->newest_span = origin->span_id;
	use->count++;
	end_writing(&use->sending);
}

/* Who sent all bytes from `first` to `byte`; all zero when that is not known, or several did. */
static __always_inline void sender_of(struct socket_use *use, __u32 first, __u32 byte, struct origin *origin)
{
	__u64 sequence = *(volatile __u64 *)&use->sending, count_ = use->count;
	bool newest = true;

	*origin = (struct origin){};
	for (__u32 i = 1; i <= SENDERS && i <= count_; i++) {
		const struct sender *sender = sender_at(use, count_ - i);

		if (!is_before(byte, sender->from)) {
			/* An older one's bytes end where the next one's begin. */
			if (!is_before(first, sender->from) &&
			    (!newest || sender->open || is_before(byte, sender->to)))
				*origin = sender->origin;
			break;
		}
		newest = false;
	}
	end_reading(&use->sending, sequence, origin);
}

/* The first sender is noted also when it has no span: its bytes are not the next one's. */
static __always_inline struct socket_use *senders_on(struct sock *sk, const struct tcp_sock *tcp)
{
	struct socket_use *use = bpf_sk_storage_get(&sockets, sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);

	if (!use) {
		count(COUNTER_LOST_STATE);
		return NULL;
	}
	if (!use->count) {
		use->told.bytes = FIELD(tcp, bytes_retrans);
		use->told.segments = FIELD(tcp, total_retrans);
	}
	/* All that was sent again so far is told: what comes next begins with what is not acknowledged now. */
	if (use->told.segments == FIELD(tcp, total_retrans))
		use->told.from = FIELD(tcp, snd_una);
	return use;
}

static __always_inline void note_sender(struct sock *sk, const struct tcp_sock *tcp, const struct origin *origin,
					__u32 from, __u32 to, bool open)
{
	struct socket_use *use = senders_on(sk, tcp);

	if (!use)
		return;
	add_sender(use, origin, from, to, open);
	used_last_by(use, USED_BY_SENDER, FIELD(tcp, copied_seq));
}

static __always_inline void note_sending(struct sock *sk, const struct origin *origin)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	if (tcp)
		note_sender(sk, tcp, origin, FIELD(tcp, write_seq), 0, true);
}

static __always_inline void note_sent(struct sock *sk, const struct origin *origin, int length)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);

	if (tcp && length > 0)
		note_sender(sk, tcp, origin, FIELD(tcp, write_seq) - length, FIELD(tcp, write_seq), false);
}

/* What was sent again and nobody told of, besides `now`, which is being told; it counts as told from here on.
 *
 * Some virtual machines hide threads of their own: of what a timer does on top of one, the kernel tells neither
 * perf, ftrace nor BPF. Before 6.16 it did not tell of a segment that could not be sent either.
 */
static __always_inline struct sent_again untold(struct socket_use *use, const struct tcp_sock *tcp, struct sent_again now)
{
	struct sent_again found = {.from = use->told.from};

	found.segments = FIELD(tcp, total_retrans) - use->told.segments - now.segments;
	found.bytes = FIELD(tcp, bytes_retrans) - use->told.bytes - now.bytes;
	use->told.segments += found.segments + now.segments;
	use->told.bytes += found.bytes + now.bytes;
	use->told.from = FIELD(tcp, snd_una);
	return found;
}

/* The origin of a segment that is sent again; false when nobody is known to have sent on this socket. */
static __always_inline bool segment_origin(struct sock *sk, __u32 sequence, struct origin *origin)
{
	struct socket_use *use = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	if (!use || !use->count)
		return false;
	sender_of(use, sequence, sequence, origin);
	return true;
}

#endif

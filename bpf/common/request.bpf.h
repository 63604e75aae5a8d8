/* HTTP/1.1 requests on their way through a server that publishes no spans of its own.
 *
 * A request is open from its request line until its answer begins. Its `traceparent` names the caller's span: the
 * socket carries it until the next request comes in, the thread that read it until the answer begins. Wherever
 * it is not certain whose request something belongs to, it belongs to none.
 */
#ifndef OTEL_BRIDGE_REQUEST_BPF_H
#define OTEL_BRIDGE_REQUEST_BPF_H

#include "http.bpf.h"
#include "socket.bpf.h"

/* A thread that was seen to serve two requests at once is an event loop, or hands them to others. */
enum { ORDERLY_REQUESTS = 8 };

/* What a new one begins as; too large for the stack beside what is read. */
MAP(no_http_request, BPF_MAP_TYPE_ARRAY, 1, __u32, struct http_request);

/* Notes what a process was seen to do that publishes nothing. User space may find out meanwhile that it publishes: that
 * stands. Bytes cannot be compared and exchanged alone: when another one of the same word was faster, once more.
 */
static __always_inline void note_silent(__u32 tgid, enum known what)
{
	enum { TRIES = 4 };
	__u32 shift = tgid % sizeof(__u64) * 8;
	struct process_row *row = row_of(tgid);
	__u64 *word, before, wanted = (__u64)what << shift;

	if (!row)
		return;
	word = &row->together[tgid % PROCESSES_A_ROW / sizeof(*word)];
	for (int i = 0; i < TRIES; i++) {
		before = *(volatile __u64 *)word;
		if (publishes(before >> shift & 0xff) || (before & wanted) == wanted ||
		    __sync_val_compare_and_swap(word, before, before | wanted) == before)
			return;
	}
	count(COUNTER_LOST_STATE);
}

/* The first one that this process reads on a connection, which another may have handed over to it. */
static __always_inline struct http_request *make_request(__u64 socket)
{
	__u32 zero = 0;
	struct http_request *fresh = bpf_map_lookup_elem(&no_http_request, &zero), *made;

	if (!fresh)
		return NULL;
	note_silent(bpf_get_current_pid_tgid() >> 32, SILENT_REQUESTS);
	if (bpf_map_update_elem(&http_requests, &socket, fresh, BPF_ANY)) {
		count(COUNTER_LOST_STATE);
		return NULL;
	}
	made = request_on(socket);
	if (made)
		made->changed = 1;
	return made;
}

static __always_inline struct thread_request *request_of_thread(__u64 thread)
{
	return bpf_map_lookup_elem(&thread_requests, &thread);
}

static __always_inline struct thread_request *make_request_of_thread(__u64 thread)
{
	struct thread_request *found = request_of_thread(thread), fresh = {};

	if (found)
		return found;
	if (bpf_map_update_elem(&thread_requests, &thread, &fresh, BPF_NOEXIST)) {
		count(COUNTER_LOST_STATE);
		return NULL;
	}
	return request_of_thread(thread);
}

/* libssl is given what was received: the one that a thread received from last is the one that it decrypts. */
static __always_inline void thread_received(__u64 thread, __u64 socket)
{
	struct thread_request *at = make_request_of_thread(thread);

	if (at)
		at->received = socket;
}

/* See span_of_request(): the socket goes first. */
static __always_inline void thread_lets_go(struct thread_request *at)
{
	*(volatile __u64 *)&at->socket = 0;
	asm volatile("" ::: "memory");
	at->origin = (struct origin){};
}

static __always_inline void thread_takes(__u64 thread, __u64 socket)
{
	struct thread_request *at = make_request_of_thread(thread);
	__u64 before;

	if (!at)
		return;
	before = at->socket;
	thread_lets_go(at);
	if (before && before != socket)
		at->distrust = ORDERLY_REQUESTS;
	at->socket = socket;
}

/* An interrupt may look at it meanwhile: the match, which says that all is there, comes last. */
static __always_inline void thread_is_at(__u64 thread, __u64 socket, const struct origin *origin)
{
	struct thread_request *at = request_of_thread(thread);
	struct origin most = *origin;

	if (!at || at->socket != socket || at->distrust)
		return;
	most.match = MATCH_NONE;
	at->origin = most;
	asm volatile("" ::: "memory");
	at->origin.match = origin->match;
}

static __always_inline void thread_is_done(const struct http_request *request, __u64 socket)
{
	struct thread_request *at = request_of_thread(request->reader);

	if (!at || at->socket != socket)
		return;
	thread_lets_go(at);
	if (request->reader != bpf_get_current_pid_tgid())
		at->distrust = ORDERLY_REQUESTS;
	else if (at->distrust)
		at->distrust--;
}

static __always_inline void forget_span(struct http_request *request)
{
	if (request->origin.match == MATCH_NONE)
		return;
	request->origin.match = MATCH_NONE;
	request->origin.trace_id[0] = request->origin.trace_id[1] = request->origin.span_id = 0;
	request->changed = 1;
}

/* The request line is whole. A request that comes in while another one is open is pipelined, or is no request but
 * part of the other one's body: from here on, nothing on this socket is certain until an answer begins.
 */
static __always_inline void request_begins(struct http_request *request, __u64 socket, __u64 thread)
{
	forget_span(request);
	if (request->open) {
		thread_is_done(request, socket);
		request->parser.phase = HTTP_IDLE;
		return;
	}
	request->open = 1;
	request->reader = thread;
	request->origin.tgid = thread >> 32;
	request->origin.tid = (__u32)thread;
	thread_takes(thread, socket);
}

static __always_inline void request_names_span(struct http_request *request, __u64 socket, __u64 thread)
{
	struct origin origin = {.tgid = thread >> 32, .tid = (__u32)thread, .match = MATCH_HEADER};

	if (!decode_traceparent(&request->parser, &origin))
		return;
	request->origin = origin;
	request->changed = 1;
	thread_is_at(thread, socket, &origin);
}

/* What is read after an answer began is the next request, or the rest of a body that the answer did not wait for:
 * either way the span is no longer certain.
 */
static __always_inline void read_after_answer(struct http_request *request)
{
	if (!request->open)
		forget_span(request);
}

/* Whether what the running thread has read from a connection is part of a header: of one that goes on, or begins. */
static __always_inline bool is_header(struct http_request *request, const void *data, __u32 available)
{
	__u32 first = 0;

	if (request && request->parser.phase != HTTP_IDLE)
		return true;
	if (request)
		read_after_answer(request);
	return available >= HTTP_LEAST && !bpf_probe_read_user(&first, sizeof(first), data) && begins_request(first);
}

/* Reads on in a header; `available` of `length` characters can be looked at. */
static __always_inline void header_is_read(struct http_request *request, __u64 socket, const void *data,
					   __u32 available, __u32 length)
{
	__u64 thread = bpf_get_current_pid_tgid();
	int verdict;

	if (request->parser.phase == HTTP_IDLE)
		http_begin(&request->parser);
	verdict = http_read(&request->parser, (__u64)data, available, length);
	if (request->parser.began) {
		request->parser.began = 0;
		if (request->open)
			verdict = HTTP_ENDED;
		request_begins(request, socket, thread);
	}
	if (verdict == HTTP_TRACEPARENT)
		request_names_span(request, socket, thread);
	else if (verdict == HTTP_REFUSED)
		count(COUNTER_BAD_HEADER);
	else if (verdict == HTTP_UNREADABLE)
		count(COUNTER_UNREADABLE);
}

static __always_inline void answer_begins(struct http_request *request, __u64 socket)
{
	if (!request->open)
		return;
	request->open = 0;
	thread_is_done(request, socket);
}

#endif

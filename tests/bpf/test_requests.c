/* Requests of programs that publish nothing: their `traceparent`, however it comes in, and no longer than it holds. */
#include "bpf/requests.bpf.c"
#define LICENSE LICENSE_OF_SOCKET
#include "bpf/socket.bpf.c"
#include "check.h"
#include "follow.h"

#define TRACE "0123456789abcdef0011223344556677"
#define SPAN "8899aabbccddeeff"
#define TRACEPARENT "traceparent: 00-" TRACE "-" SPAN "-01\r\n"
#define REQUEST "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
#define OTHER "Accept: */*\r\ntraceless: 1\r\ntraceparents: 1\r\nx-traceparent: 1\r\n"

enum { TGID = 42, TID = 43 };

static struct task_struct task;
static struct pt_regs___syscall registers;
static struct fake_connection connections[2];
#define server connections[0].sock
#define another connections[1].sock

static void run_as(int tid)
{
	task = (struct task_struct){.tgid = TGID, .pid = tid};
	fake.thread = thread_of(&task);
}

static void begin(void)
{
	CONFIGURE(sources);
	server = another = (struct sock){
		.__sk_common.skc_family = ADDRESS_FAMILY_INET,
		.sk_protocol = PROTOCOL_TCP,
		.sk_type = SOCKET_STREAM,
	};
	fake.task = &task;
	fake.registers = &registers;
	run_as(TID);
}

/* Both programs hang on the tracepoint. */
static void receives(struct sock *sk, int length, int flags)
{
	if (length > 0 && !(flags & FLAG_PEEK))
		((struct fake_connection *)sk)->tcp.copied_seq += length;
	request_received(NULL, sk, length, flags);
	sock_recv_length(NULL, sk);
}

static void sends(struct sock *sk, int length)
{
	tcp_sendmsg_locked(NULL, sk);
	answer_sent(NULL, sk, length);
}

static void receive_bytes(struct sock *sk, const char *bytes, int length)
{
	/* Of its own size, so that reading on is seen. */
	char *copy = malloc(length);

	memcpy(copy, bytes, length);
	registers = (struct pt_regs___syscall){.orig_ax = SYSCALL_RECVFROM, .si = (unsigned long)copy};
	receives(sk, length, 0);
	free(copy);
}

static void receive(struct sock *sk, const char *text)
{
	receive_bytes(sk, text, strlen(text));
}

static void answer(struct sock *sk, const char *text)
{
	registers = (struct pt_regs___syscall){.orig_ax = SYSCALL_SENDTO, .si = (unsigned long)text};
	sends(sk, strlen(text));
}

static __u64 counted(enum counter which)
{
	__u32 key = which;

	return *(__u64 *)bpf_map_lookup_elem(&counters, &key);
}

/* Of the one trace and span that the tests use; 1 when it is there, 0 when there is none. */
static int is_named(const struct origin *origin)
{
	if (origin->match == MATCH_NONE) {
		CHECK(origin->trace_id[0] == 0 && origin->trace_id[1] == 0 && origin->span_id == 0);
		return 0;
	}
	CHECK(origin->match == MATCH_HEADER && origin->trace_flags == 1 && origin->tgid == TGID);
	CHECK(!memcmp(origin->trace_id, "\x01\x23\x45\x67\x89\xab\xcd\xef\x00\x11\x22\x33\x44\x55\x66\x77", 16));
	CHECK(!memcmp(&origin->span_id, "\x88\x99\xaa\xbb\xcc\xdd\xee\xff", 8));
	return 1;
}

static int on_socket(struct sock *sk)
{
	struct origin origin;

	socket_origin(sk, &origin);
	return is_named(&origin);
}

static int on_thread(void)
{
	struct origin origin;

	CHECK(current_origin(&origin) == (origin.match != MATCH_NONE));
	CHECK(origin.tgid == TGID && origin.tid == (__u32)task.pid);
	return is_named(&origin);
}

static void a_request_is_carried_by_its_socket_and_its_thread(void)
{
	begin();
	receive(&server, REQUEST OTHER TRACEPARENT "\r\nbody");
	CHECK(on_socket(&server) && on_thread());
	run_as(TID + 1);
	CHECK(!on_thread());
}

static void a_header_may_come_in_any_two_pieces(void)
{
	static const char whole[] = REQUEST OTHER TRACEPARENT "Content-Length: 4\r\n\r\n";

	for (int at = HTTP_LEAST; at < (int)sizeof(whole) - 1; at++) {
		RESET();
		begin();
		receive_bytes(&server, whole, at);
		receive_bytes(&server, whole + at, sizeof(whole) - 1 - at);
		CHECK(on_socket(&server) && on_thread());
	}
}

static void a_header_may_come_in_single_characters(void)
{
	static const char whole[] = REQUEST OTHER TRACEPARENT "\r\n";

	begin();
	receive_bytes(&server, whole, HTTP_LEAST);
	for (int at = HTTP_LEAST; at < (int)sizeof(whole) - 1; at++)
		receive_bytes(&server, whole + at, 1);
	CHECK(on_socket(&server) && on_thread());
}

static void the_name_is_read_in_any_case_and_spaces_do_not_count(void)
{
	static const char *const headers[] = {
		"TraceParent:00-" TRACE "-" SPAN "-01\r\n",
		"TRACEPARENT: \t 00-" TRACE "-" SPAN "-01 \t\r\n",
		"traceparent: 00-" TRACE "-" SPAN "-01\n", /* lenient servers take a bare newline */
		"traceparent: cc-" TRACE "-" SPAN "-01-of-a-later-version\r\n",
		"traceparent: cc-" TRACE "-" SPAN "-01\r\n",
	};

	for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++) {
		RESET();
		begin();
		receive(&server, REQUEST);
		receive(&server, headers[i]);
		CHECK(on_socket(&server) && on_thread());
		CHECK(counted(COUNTER_BAD_HEADER) == 0);
	}
}

static void what_is_no_traceparent_is_refused_and_counted(void)
{
	static const char *const headers[] = {
		"traceparent: ff-" TRACE "-" SPAN "-01\r\n",
		"traceparent: 00-" TRACE "-" SPAN "-01-more\r\n",
		"traceparent: 00-" TRACE "-" SPAN "-01x\r\n",
		"traceparent: 00-" TRACE "-" SPAN "-01 x\r\n",
		"traceparent: 00-" TRACE "-" SPAN "-0\r\n",
		"traceparent: 00-" TRACE "-" SPAN "\r\n",
		"traceparent: 00-0123456789ABCDEF0011223344556677-" SPAN "-01\r\n",
		"traceparent: 00-0123456789abcdeg0011223344556677-" SPAN "-01\r\n",
		"traceparent: 00_" TRACE "-" SPAN "-01\r\n",
		"traceparent: 00-" TRACE "_" SPAN "-01\r\n",
		"traceparent: 00-" TRACE "-" SPAN "_01\r\n",
		"traceparent: 00-" TRACE "-" SPAN "-0G\r\n",
		"traceparent:\r\n",
		"traceparent: \r\n",
	};

	for (size_t i = 0; i < sizeof(headers) / sizeof(*headers); i++) {
		RESET();
		begin();
		receive(&server, REQUEST);
		receive(&server, headers[i]);
		receive(&server, "\r\n");
		CHECK(!on_socket(&server) && !on_thread());
		CHECK(counted(COUNTER_BAD_HEADER) == 1 && counted(COUNTER_ZERO_IDS) == 0);
	}
}

static void zero_ids_are_refused_and_counted(void)
{
	begin();
	receive(&server, REQUEST "traceparent: 00-00000000000000000000000000000000-" SPAN "-01\r\n\r\n");
	receive(&another, REQUEST "traceparent: 00-" TRACE "-0000000000000000-01\r\n\r\n");
	CHECK(!on_socket(&server) && !on_socket(&another) && !on_thread());
	CHECK(counted(COUNTER_ZERO_IDS) == 2 && counted(COUNTER_BAD_HEADER) == 0);
}

static void the_next_request_on_a_connection_inherits_nothing(void)
{
	begin();
	for (int i = 0; i < 23; i++) {
		receive(&server, REQUEST TRACEPARENT "\r\n");
		CHECK(on_socket(&server) && on_thread());
		answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
		CHECK(on_socket(&server) && !on_thread());
		receive(&server, REQUEST "\r\n");
		CHECK(!on_socket(&server) && !on_thread());
		answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	}
}

/* What is read after the answer is the next request, also where it cannot be told as one. */
static void nothing_is_certain_after_the_answer(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	receive(&server, "PO");
	CHECK(!on_socket(&server));
}

static void a_body_belongs_to_its_request(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	receive(&server, "traceparent: 00-11111111111111111111111111111111-1111111111111111-01\r\n");
	receive(&server, "POST is how this piece of the body begins\r\n");
	CHECK(on_socket(&server) && on_thread());
}

/* Pipelined, or a body that looks like a request: it cannot be told, so neither is believed. */
static void a_request_within_a_request_takes_the_span_away(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	receive(&server, REQUEST TRACEPARENT "\r\n");
	CHECK(!on_socket(&server) && !on_thread());
	answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	receive(&server, REQUEST TRACEPARENT "\r\n");
	CHECK(on_socket(&server));
}

/* What an event without a span is left to be matched by. */
static void a_request_without_a_span_tells_its_process(void)
{
	struct origin origin;

	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	run_as(TID + 1);
	receive(&server, REQUEST "\r\n");
	socket_origin(&server, &origin);
	CHECK(origin.match == MATCH_NONE && origin.tgid == TGID);
}

/* One process accepts, another serves: it inherits nothing of what the first one read. */
static void a_connection_that_is_handed_over_begins_anew(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	task.tgid = TGID + 1;
	fake.thread = thread_of(&task);
	receive(&server, REQUEST "\r\n");
	CHECK(!on_socket(&server));
	answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	receive(&server, REQUEST TRACEPARENT "\r\n");
	CHECK(fake_map_of(&http_requests)->used == 1);
	CHECK(request_on((unsigned long)&server)->origin.tgid == TGID + 1);
	CHECK(counted(COUNTER_LOST_STATE) == 0);
}

static void an_interim_answer_and_one_that_was_not_sent_are_none(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	answer(&server, "HTTP/1.1 100 Continue\r\n\r\n");
	CHECK(on_thread());
	sends(&server, -ERROR_AGAIN);
	CHECK(on_thread());
	sends(&server, -32); /* EPIPE */
	CHECK(!on_thread());
}

static void connections_of_the_thread_carry_its_span_while_it_has_one(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	answer(&another, "SELECT 1");
	receive(&another, "1 row");
	CHECK(on_socket(&another) && on_socket(&server));
	answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	answer(&another, "ROLLBACK");
	CHECK(!on_socket(&another));
}

static void serve_in_order(struct sock *sk)
{
	receive(sk, REQUEST "\r\n");
	answer(sk, "HTTP/1.1 200 OK\r\n\r\n");
}

static void a_thread_with_two_requests_is_at_neither(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	receive(&another, REQUEST TRACEPARENT "\r\n");
	CHECK(!on_thread());
	CHECK(on_socket(&server) && on_socket(&another));
	answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	answer(&another, "HTTP/1.1 200 OK\r\n\r\n");
	for (int i = 1; i < ORDERLY_REQUESTS; i++) {
		receive(&server, REQUEST TRACEPARENT "\r\n");
		CHECK(!on_thread() && on_socket(&server));
		answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	}
	receive(&server, REQUEST TRACEPARENT "\r\n");
	CHECK(on_thread());
}

static void a_thread_whose_requests_others_answer_is_at_none_of_them(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	CHECK(on_thread());
	run_as(TID + 1);
	answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	run_as(TID);
	CHECK(!on_thread());
	receive(&server, REQUEST TRACEPARENT "\r\n");
	CHECK(!on_thread() && on_socket(&server));
}

static void a_thread_that_ends_leaves_nothing_to_the_next_of_its_number(void)
{
	begin();
	receive(&server, REQUEST TRACEPARENT "\r\n");
	sched_process_exit(NULL, &task);
	CHECK(!on_thread());
	serve_in_order(&another);
	receive(&another, REQUEST TRACEPARENT "\r\n");
	CHECK(on_thread());
}

static void a_header_too_long_is_given_up_and_the_next_one_read(void)
{
	static char filler[2 * HTTP_CHUNK * HTTP_CHUNKS];

	begin();
	snprintf(filler, sizeof(filler), REQUEST "Cookie: %0*d\r\n" TRACEPARENT "\r\n", HTTP_CHUNK * HTTP_CHUNKS, 1);
	receive(&server, filler);
	CHECK(!on_socket(&server) && !on_thread());
	answer(&server, "HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n");
	receive(&server, REQUEST TRACEPARENT "\r\n");
	CHECK(on_socket(&server));
}

static void other_protocols_leave_nothing(void)
{
	begin();
	receive(&server, "\x17\x03\x03");
	receive(&server, "\x17\x03\x03\x01\x00 encrypted");
	receive(&server, "HTTP/1.1 200 OK\r\n" TRACEPARENT "\r\n");
	receive(&server, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
	CHECK(fake_map_of(&http_requests)->used == 0);
	receive(&server, "GET key\r\n" TRACEPARENT "\r\n"); /* Redis, inline */
	CHECK(!on_socket(&server) && !on_thread());
	CHECK(fake_map_of(&thread_requests)->used == 0);
	server.sk_type = 2; /* SOCK_DGRAM */
	receive(&server, REQUEST TRACEPARENT "\r\n");
	server.sk_type = SOCKET_STREAM;
	CHECK(!on_socket(&server) && !on_thread());
}

static void every_way_to_read_is_known_and_no_other(void)
{
	static char text[] = REQUEST TRACEPARENT "\r\n";
	struct user_buffer vector[2] = {{text, sizeof(text) - 1}, {"", 0}};
	struct {
		char before[MESSAGE_VECTOR];
		void *vector;
	} message = {.vector = vector};
	const struct {
		unsigned long number;
		void *second;
		int known;
	} calls[] = {
		{SYSCALL_READ, text, 1}, {SYSCALL_RECVFROM, text, 1}, {SYSCALL_READV, vector, 1},
		{SYSCALL_RECVMSG, &message, 1}, {426 /* io_uring_enter */, text, 0}, {~0ul, text, 0},
		{SYSCALL_READ, (void *)8, 0}, {SYSCALL_READV, (void *)8, 0}, {SYSCALL_RECVMSG, (void *)8, 0},
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		RESET();
		begin();
		registers = (struct pt_regs___syscall){.orig_ax = calls[i].number,
						       .si = (unsigned long)calls[i].second};
		receives(&server, sizeof(text) - 1, 0);
		CHECK(on_socket(&server) == calls[i].known);
	}
}

/* The rest of the header lies in a piece that is not looked at. */
static void a_vector_s_second_piece_ends_the_search(void)
{
	struct user_buffer vector[1] = {{REQUEST, sizeof(REQUEST) - 1}};

	begin();
	registers = (struct pt_regs___syscall){.orig_ax = SYSCALL_READV, .si = (unsigned long)vector};
	receives(&server, sizeof(REQUEST) - 1 + 100, 0);
	receive(&server, TRACEPARENT "\r\n");
	CHECK(!on_socket(&server));
}

static void what_is_only_peeked_at_is_read_once(void)
{
	static char text[] = REQUEST TRACEPARENT "\r\n";

	begin();
	registers = (struct pt_regs___syscall){.orig_ax = SYSCALL_RECVFROM, .si = (unsigned long)text};
	receives(&server, sizeof(text) - 1, FLAG_PEEK);
	CHECK(!on_socket(&server));
	receive(&server, text);
	CHECK(on_socket(&server));
	receives(&server, 0, 0);
	receives(&server, -ERROR_AGAIN, 0);
	CHECK(on_socket(&server));
}

static void a_process_that_publishes_is_believed_and_nothing_else(void)
{
	begin();
	task.thread.fsbase = 1;
	follow(TGID, (struct thread_layout){.offset = -64});
	receive(&server, REQUEST TRACEPARENT "\r\n");
	CHECK(!on_socket(&server) && !on_thread());
	CHECK(fake_map_of(&http_requests)->used == 0);
}

static void full_tables_are_counted(void)
{
	static struct fake_connection many[FAKE_ROOM + 1];

	begin();
	for (int i = 0; i <= FAKE_ROOM; i++) {
		many[i].sock.sk_type = SOCKET_STREAM;
		receive(&many[i].sock, REQUEST "\r\n");
	}
	CHECK(counted(COUNTER_LOST_STATE) == 1);
}

static void whatever_comes_in_does_no_harm(void)
{
	static const char alphabet[] = REQUEST TRACEPARENT "\r\n\0\xff";
	unsigned int seed = 23;

	begin();
	for (int i = 0; i < 100003; i++) {
		char bytes[64];
		int length = 1 + rand_r(&seed) % sizeof(bytes);
		int from = rand_r(&seed) % (sizeof(alphabet) - sizeof(bytes));

		memcpy(bytes, alphabet + from, sizeof(bytes));
		if (rand_r(&seed) % 4 == 0)
			bytes[rand_r(&seed) % length] = rand_r(&seed);
		receive_bytes(rand_r(&seed) % 2 ? &server : &another, bytes, length);
		if (rand_r(&seed) % 8 == 0)
			answer(&server, "HTTP/1.1 200 OK\r\n\r\n");
	}
}

static void what_obi_says_is_asked_where_nothing_is_published(void)
{
	struct shared_context context = {.trace_id = {1, 2}, .span_id = 3};
	__u64 thread = (__u64)TGID << 32 | TID;
	struct origin origin;

	begin();
	bpf_map_update_elem(&shared_contexts, &thread, &context, BPF_ANY);
	CHECK(!current_origin(&origin));
	CONFIGURE(sources, .shared_table = 1);
	CHECK(current_origin(&origin) && origin.match == MATCH_THREAD && origin.span_id == 3);
	answer(&another, "SELECT 1");
	socket_origin(&another, &origin);
	CHECK(origin.match == MATCH_SOCKET && origin.span_id == 3 && origin.tid == TID);
	context.span_id = 0;
	bpf_map_update_elem(&shared_contexts, &thread, &context, BPF_ANY);
	CHECK(!current_origin(&origin) && counted(COUNTER_ZERO_IDS) == 1);
	context.span_id = 3;
	bpf_map_update_elem(&shared_contexts, &thread, &context, BPF_ANY);
	task.thread.fsbase = 1;
	follow(TGID, (struct thread_layout){.offset = -64});
	CHECK(!current_origin(&origin));
}

static void what_is_noted_of_a_process_leaves_others_alone(void)
{
	__u8 *known = row_of(TGID)->known + TGID % PROCESSES_A_ROW;

	begin();
	follow(TGID + 1, (struct thread_layout){});
	note_silent(TGID, SILENT_TLS);
	CHECK(known_of(TGID) == SILENT_TLS);
	note_silent(TGID, SILENT_REQUESTS);
	note_silent(TGID, SILENT_REQUESTS);
	CHECK(known_of(TGID) == (SILENT_REQUESTS | SILENT_TLS));
	CHECK(known[-1] == 0 && known[1] == FIRST_LAYOUT);
	CHECK(counted(COUNTER_LOST_STATE) == 0);
}

static void a_process_that_publishes_is_noted_nothing_of(void)
{
	begin();
	follow(TGID, (struct thread_layout){});
	note_silent(TGID, SILENT_REQUESTS);
	CHECK(known_of(TGID) == FIRST_LAYOUT);
}

int main(void)
{
	RUN(a_request_is_carried_by_its_socket_and_its_thread);
	RUN(a_header_may_come_in_any_two_pieces);
	RUN(a_header_may_come_in_single_characters);
	RUN(the_name_is_read_in_any_case_and_spaces_do_not_count);
	RUN(what_is_no_traceparent_is_refused_and_counted);
	RUN(zero_ids_are_refused_and_counted);
	RUN(the_next_request_on_a_connection_inherits_nothing);
	RUN(nothing_is_certain_after_the_answer);
	RUN(a_body_belongs_to_its_request);
	RUN(a_request_within_a_request_takes_the_span_away);
	RUN(a_request_without_a_span_tells_its_process);
	RUN(a_connection_that_is_handed_over_begins_anew);
	RUN(an_interim_answer_and_one_that_was_not_sent_are_none);
	RUN(connections_of_the_thread_carry_its_span_while_it_has_one);
	RUN(a_thread_with_two_requests_is_at_neither);
	RUN(a_thread_whose_requests_others_answer_is_at_none_of_them);
	RUN(a_thread_that_ends_leaves_nothing_to_the_next_of_its_number);
	RUN(a_header_too_long_is_given_up_and_the_next_one_read);
	RUN(other_protocols_leave_nothing);
	RUN(every_way_to_read_is_known_and_no_other);
	RUN(a_vector_s_second_piece_ends_the_search);
	RUN(what_is_only_peeked_at_is_read_once);
	RUN(a_process_that_publishes_is_believed_and_nothing_else);
	RUN(full_tables_are_counted);
	RUN(whatever_comes_in_does_no_harm);
	RUN(what_obi_says_is_asked_where_nothing_is_published);
	RUN(what_is_noted_of_a_process_leaves_others_alone);
	RUN(a_process_that_publishes_is_noted_nothing_of);
	return 0;
}

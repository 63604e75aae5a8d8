/* Who used a socket last, when several do, or one that is at no span. */
#include "bpf/tcp.bpf.c"
#define LICENSE LICENSE_OF_SOCKET
#include "bpf/socket.bpf.c"
#include "check.h"
#include "connection.h"

static void sends(__u64 span, __u32 bytes)
{
	at_work_on(span);
	tcp_sendmsg_locked(NULL, sk);
	connection.tcp.write_seq += bytes;
	datagram_sent(NULL, sk);
}

static void reads(__u64 span, int bytes)
{
	at_work_on(span);
	connection.tcp.copied_seq += bytes > 0 ? bytes : 0;
	sock_recv_length(NULL, sk);
}

static void changes(int from, int to)
{
	inet_sock_set_state(NULL, sk, from, to);
}

static struct origin last_use(void)
{
	struct origin origin;

	socket_origin(sk, &origin);
	CHECK(origin.match == (origin.span_id ? MATCH_SOCKET : MATCH_NONE));
	CHECK(origin.span_id || !(origin.trace_id[0] | origin.trace_id[1] | origin.trace_flags));
	return origin;
}

static __u64 used_by(void)
{
	return last_use().span_id;
}

static void whoever_sent_last_or_read_last_uses_it(void)
{
	begin();
	sends(7, 100);
	CHECK(used_by() == 7);
	sends(8, 100);
	CHECK(used_by() == 8);
	reads(9, 50);
	CHECK(used_by() == 9);
	reads(8, 50);
	CHECK(used_by() == 8);
	sends(9, 100);
	CHECK(used_by() == 9);
}

static void one_that_sends_again_uses_it_again(void)
{
	begin();
	sends(7, 100);
	reads(8, 50);
	sends(7, 100);
	CHECK(used_by() == 7);
}

static void one_whose_bytes_find_no_room_uses_it_all_the_same(void)
{
	begin();
	reads(8, 50);
	sends(7, 0);
	CHECK(used_by() == 7);
}

/* Case ebpf-context-leak: the next request on a connection that is kept. */
static void what_is_read_at_no_span_ends_the_use(void)
{
	struct origin origin;

	begin();
	sends(7, 100);
	reads(0, 50);
	origin = last_use();
	CHECK(!origin.span_id && origin.tgid == TGID && origin.tid == 0);
	reads(8, 50);
	CHECK(used_by() == 8);
	reads(0, 50);
	CHECK(used_by() == 0);
	sends(8, 100);
	CHECK(used_by() == 8);
}

static void reading_nothing_ends_nothing(void)
{
	begin();
	sends(7, 100);
	reads(0, -11);
	reads(0, 0);
	CHECK(used_by() == 7);
}

static void what_is_sent_at_no_span_ends_the_use(void)
{
	begin();
	reads(7, 50);
	sends(0, 100);
	CHECK(used_by() == 0 && last_use().tgid == TGID);
}

/* By splice, for one, of which nobody tells. */
static void what_is_read_unseen_ends_the_use(void)
{
	begin();
	sends(7, 100);
	connection.tcp.copied_seq++;
	CHECK(used_by() == 0);
}

static void reading_goes_on_where_numbers_wrap_around(void)
{
	begin();
	connection.tcp.copied_seq = (__u32)-10;
	reads(7, 50);
	CHECK(connection.tcp.copied_seq == 40 && used_by() == 7);
	sends(7, 100);
	CHECK(used_by() == 7);
	reads(0, 1);
	CHECK(used_by() == 0);
}

static void a_server_s_requests_leave_no_trace_of_one_another(void)
{
	begin();
	for (__u64 span = 1; span <= 100; span++) {
		reads(0, 50);
		CHECK(used_by() == 0);
		sends(span, 100);
		CHECK(used_by() == span);
	}
}

static void processes_that_are_not_followed_are_nobody(void)
{
	begin();
	task.tgid = TGID + 1;
	sends(7, 100);
	reads(7, 50);
	CHECK(used_by() == 0 && last_use().tgid == 0);
}

/* Where the peer's bytes begin is not known before it answers. */
static void who_connects_uses_it_until_somebody_reads(void)
{
	begin();
	connection.tcp.copied_seq = 0;
	at_work_on(7);
	changes(STATE_CLOSE, STATE_SYN_SENT);
	connection.tcp.write_seq = 77;
	CHECK(used_by() == 7);
	connection.tcp.copied_seq = 123456;
	CHECK(used_by() == 7);
	changes(STATE_SYN_SENT, STATE_ESTABLISHED);
	CHECK(used_by() == 7);
	reads(0, 50);
	CHECK(used_by() == 0);
}

static void who_connects_at_no_span_is_known_by_its_process(void)
{
	begin();
	at_work_on(0);
	changes(STATE_CLOSE, STATE_SYN_SENT);
	changes(STATE_SYN_SENT, STATE_ESTABLISHED);
	CHECK(used_by() == 0 && last_use().tgid == TGID && last_use().tid == TID);
}

/* Datagrams have no numbers: whoever receives one ends the use. */
static void datagrams_are_used_by_whoever_sends_or_receives(void)
{
	begin_with(17);
	sends(7, 100);
	CHECK(used_by() == 7);
	reads(8, 50);
	CHECK(used_by() == 8);
	reads(0, 50);
	CHECK(used_by() == 0 && last_use().tgid == TGID && last_use().tid == TID);
	sends(8, 100);
	CHECK(used_by() == 8);
}

static void what_is_half_written_is_not_used(void)
{
	struct socket_use *use;

	begin();
	reads(7, 50);
	use = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	use->reading++;
	CHECK(used_by() == 0);
	reads(8, 50); /* somebody is at it */
	use->reading++;
	CHECK(used_by() == 0); /* and has not said yet how far it read */
	reads(8, 0);
	CHECK(used_by() == 8);
	sends(9, 100);
	use->sending++;
	CHECK(used_by() == 0);
	use->sending++;
	CHECK(used_by() == 9);
}

int main(void)
{
	RUN(whoever_sent_last_or_read_last_uses_it);
	RUN(one_that_sends_again_uses_it_again);
	RUN(one_whose_bytes_find_no_room_uses_it_all_the_same);
	RUN(what_is_read_at_no_span_ends_the_use);
	RUN(reading_nothing_ends_nothing);
	RUN(what_is_sent_at_no_span_ends_the_use);
	RUN(what_is_read_unseen_ends_the_use);
	RUN(reading_goes_on_where_numbers_wrap_around);
	RUN(a_server_s_requests_leave_no_trace_of_one_another);
	RUN(processes_that_are_not_followed_are_nobody);
	RUN(who_connects_uses_it_until_somebody_reads);
	RUN(who_connects_at_no_span_is_known_by_its_process);
	RUN(datagrams_are_used_by_whoever_sends_or_receives);
	RUN(what_is_half_written_is_not_used);
	return 0;
}

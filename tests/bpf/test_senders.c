/* Whose a segment is that is sent again, when several spans have used the connection. */
#include "bpf/socket.bpf.c"
#include "check.h"
#include "connection.h"

/* As the kernel does since 6.16: it tells of the send, then sends. */
static void send(__u64 span, __u32 bytes)
{
	at_work_on(span);
	about_to_send(sk);
	connection.tcp.write_seq += bytes;
}

static void send_told_afterwards(__u64 span, __u32 bytes)
{
	at_work_on(span);
	connection.tcp.write_seq += bytes;
	has_sent(sk, bytes);
}

static __u64 span_at(__u32 byte)
{
	struct origin origin;

	CHECK(segment_origin(sk, byte, &origin));
	CHECK(origin.match == (origin.span_id ? MATCH_SOCKET : MATCH_NONE));
	return origin.span_id;
}

static void each_byte_is_whose_who_sent_it(void)
{
	begin();
	send(7, 100);
	send(8, 100);
	send(9, 100);
	CHECK(span_at(1000) == 7 && span_at(1099) == 7);
	CHECK(span_at(1100) == 8 && span_at(1199) == 8);
	CHECK(span_at(1200) == 9 && span_at(1299) == 9);
}

static void a_byte_is_its_sender_s_while_the_call_that_sends_it_goes_on(void)
{
	begin();
	send(7, 100);
	at_work_on(8);
	about_to_send(sk);
	CHECK(span_at(1100) == 8);
}

static void told_afterwards_a_byte_is_nobody_s_until_then(void)
{
	begin();
	send_told_afterwards(7, 100);
	CHECK(span_at(1099) == 7 && span_at(1100) == 0);
	send_told_afterwards(8, 100);
	CHECK(span_at(1100) == 8 && span_at(1200) == 0);
	send_told_afterwards(8, 100);
	CHECK(span_at(1200) == 8);
}

static void what_is_sent_without_a_span_is_not_the_last_one_s(void)
{
	begin();
	send(7, 100);
	send(0, 100);
	send(8, 100);
	CHECK(span_at(1050) == 7 && span_at(1150) == 0 && span_at(1250) == 8);
}

static void a_first_sender_without_a_span_counts_too(void)
{
	begin();
	send(0, 100);
	send(8, 100);
	CHECK(span_at(1050) == 0 && span_at(1150) == 8);
}

static void bytes_of_forgotten_senders_are_nobody_s(void)
{
	begin();
	for (__u64 span = 1; span <= SENDERS + 3; span++)
		send(span, 100);
	CHECK(span_at(1000) == 0 && span_at(1299) == 0);
	CHECK(span_at(1300) == 4 && span_at(1699) == 7);
}

static void one_span_that_sends_often_takes_one_place(void)
{
	begin();
	send(7, 100);
	for (int i = 0; i < 1000; i++)
		send(8, 10);
	CHECK(span_at(1000) == 7 && span_at(1100) == 8 && span_at(11099) == 8);
}

static void sequence_numbers_wrap_around(void)
{
	begin();
	connection.tcp.write_seq = (__u32)-50;
	send(7, 100);
	send(8, 100);
	CHECK(span_at((__u32)-1) == 7 && span_at(49) == 7 && span_at(50) == 8);
}

static void a_half_written_list_is_not_used(void)
{
	struct origin origin;
	struct socket_use *use;

	begin();
	send(7, 100);
	use = bpf_sk_storage_get(&sockets, sk, NULL, 0);
	use->sending++;
	CHECK(segment_origin(sk, 1000, &origin));
	CHECK(origin.match == MATCH_NONE && origin.span_id == 0);
	send(8, 100); /* somebody is at it: nothing is noted */
	use->sending++;
	CHECK(span_at(1100) == 7);
}

static void processes_that_are_not_followed_leave_no_trace(void)
{
	struct origin origin;

	begin();
	task.tgid = TGID + 1;
	send(7, 100);
	CHECK(!segment_origin(sk, 1000, &origin));
}

static void a_send_that_failed_sent_nothing(void)
{
	struct origin origin;

	begin();
	at_work_on(7);
	has_sent(sk, -11);
	CHECK(!segment_origin(sk, 1000, &origin));
}

static struct sent_again told_besides(__u32 segments, __u64 bytes)
{
	struct socket_use *use = bpf_sk_storage_get(&sockets, sk, NULL, 0);

	return untold(use, &connection.tcp, (struct sent_again){.segments = segments, .bytes = bytes});
}

static void what_nobody_told_of_is_told_once(void)
{
	struct sent_again found;

	begin();
	connection.tcp.total_retrans = 3; /* the handshake's, or of before the probe was there */
	connection.tcp.bytes_retrans = 7;
	send(7, 100);
	CHECK(told_besides(0, 0).segments == 0);
	connection.tcp.total_retrans += 2;
	connection.tcp.bytes_retrans += 50;
	CHECK(told_besides(2, 50).segments == 0);
	connection.tcp.total_retrans += 5;
	connection.tcp.bytes_retrans += 90;
	found = told_besides(1, 20);
	CHECK(found.segments == 4 && found.bytes == 70);
	CHECK(told_besides(0, 0).segments == 0 && told_besides(0, 0).bytes == 0);
	send(8, 100);
	connection.tcp.total_retrans += 1;
	connection.tcp.bytes_retrans += 10;
	found = told_besides(0, 0);
	CHECK(found.segments == 1 && found.bytes == 10);
}

static void counts_of_what_is_sent_again_wrap_around(void)
{
	begin();
	connection.tcp.total_retrans = (__u32)-1;
	send(7, 100);
	connection.tcp.total_retrans += 2;
	CHECK(told_besides(1, 0).segments == 1);
}

/* The span of all that may have been sent again, unseen, until now. */
static __u64 span_of_untold(void)
{
	struct sent_again found = told_besides(0, 0);
	struct origin origin;

	CHECK(found.segments == 1);
	sender_of(bpf_sk_storage_get(&sockets, sk, NULL, 0), found.from, connection.tcp.snd_nxt - 1, &origin);
	return origin.span_id;
}

static void what_nobody_told_of_is_whose_who_sent_all_that_it_may_be_of(void)
{
	begin();
	connection.tcp.snd_una = 1000;
	send(7, 100);
	connection.tcp.snd_nxt = 1100;
	connection.tcp.total_retrans++;
	CHECK(span_of_untold() == 7);
	/* All of it arrived; the next one begins. */
	connection.tcp.snd_una = 1100;
	send(8, 100);
	connection.tcp.snd_nxt = 1200;
	connection.tcp.total_retrans++;
	CHECK(span_of_untold() == 8);
	/* The next one begins while bytes of this one are under way: it may be either's. */
	send(9, 100);
	connection.tcp.snd_nxt = 1300;
	connection.tcp.total_retrans++;
	CHECK(span_of_untold() == 0);
	/* It was sent again before the next one began, and nobody looked since. */
	connection.tcp.snd_una = 1300;
	told_besides(0, 0);
	send(10, 100);
	connection.tcp.total_retrans++;
	connection.tcp.snd_una = 1400;
	send(11, 100);
	connection.tcp.snd_nxt = 1500;
	CHECK(span_of_untold() == 0);
}

int main(void)
{
	RUN(each_byte_is_whose_who_sent_it);
	RUN(a_byte_is_its_sender_s_while_the_call_that_sends_it_goes_on);
	RUN(told_afterwards_a_byte_is_nobody_s_until_then);
	RUN(what_is_sent_without_a_span_is_not_the_last_one_s);
	RUN(a_first_sender_without_a_span_counts_too);
	RUN(bytes_of_forgotten_senders_are_nobody_s);
	RUN(one_span_that_sends_often_takes_one_place);
	RUN(sequence_numbers_wrap_around);
	RUN(a_half_written_list_is_not_used);
	RUN(processes_that_are_not_followed_leave_no_trace);
	RUN(a_send_that_failed_sent_nothing);
	RUN(what_nobody_told_of_is_told_once);
	RUN(counts_of_what_is_sent_again_wrap_around);
	RUN(what_nobody_told_of_is_whose_who_sent_all_that_it_may_be_of);
	return 0;
}

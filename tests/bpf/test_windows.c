/* How long a peer's window was zero, whichever of its segments were seen. */
#include "bpf/tcp.bpf.c"
#include "check.h"

enum { MILLISECOND = 1000000, OPEN = 4096, WAITING = 100 };

static struct fake_connection connection;
static unsigned char header[60];
static struct sk_buff segment = {.data = header};
static struct sock *sk = &connection.sock;

static void begin(void)
{
	CONFIGURE(config);
	connection = (struct fake_connection){
		.sock = {.__sk_common.skc_family = ADDRESS_FAMILY_INET, .sk_protocol = PROTOCOL_TCP},
		.tcp = {.snd_wnd = OPEN, .snd_nxt = OPEN, .write_seq = OPEN + WAITING},
	};
	fake.now = 7000ull * MILLISECOND;
}

static void pass(__u64 milliseconds)
{
	fake.now += milliseconds * MILLISECOND;
}

/* The kernel takes a segment in, which may go unseen. */
static void unseen(__u16 window, bool acknowledges)
{
	connection.tcp.snd_wnd = window;
	if (acknowledges)
		connection.tcp.delivered_mstamp = (fake.now - FAKE_SLEPT) / 1000;
}

static void seen(__u16 window, bool acknowledges)
{
	memcpy(header + 14, &(__u16){bpf_htons(window)}, sizeof(window));
	tcp_probe(NULL, sk, &segment);
	unseen(window, acknowledges);
}

/* Milliseconds of the one event there is; -1: there is none. */
static long told(void)
{
	struct tcp_event *record = (void *)fake.records[0];
	long took;

	if (!fake.submitted)
		return -1;
	CHECK(fake.submitted == 1 && record->event.kind == EVENT_TCP_ZERO_WINDOW);
	CHECK(record->bytes == WAITING && record->event.time_ns == fake.now);
	took = record->event.duration_ns / MILLISECOND;
	fake.submitted = 0;
	return took;
}

static void from_the_segment_that_closed_it_to_the_one_that_opened_it(void)
{
	begin();
	seen(0, true);
	pass(200);
	seen(0, false); /* the answer to a probe */
	pass(100);
	CHECK(told() == -1);
	seen(OPEN, false);
	CHECK(told() == 300);
	seen(OPEN, true);
	CHECK(told() == -1);
}

static void a_segment_that_closed_it_unseen_was_what_it_acknowledged_last(void)
{
	begin();
	unseen(0, true);
	pass(200);
	seen(0, false);
	pass(100);
	seen(OPEN, false);
	CHECK(told() == 300);
}

static void so_it_was_where_nothing_was_seen_until_it_opened(void)
{
	begin();
	unseen(0, true);
	pass(150);
	seen(OPEN, false);
	CHECK(told() == 150);
}

static void so_it_was_where_a_peer_took_back_what_it_had_offered(void)
{
	begin();
	connection.tcp.snd_una = OPEN - 1;
	seen(0, true);
	pass(200);
	seen(0, false);
	pass(100);
	seen(OPEN, false);
	CHECK(told() == 300);
}

static void a_peer_that_has_acknowledged_nothing_is_told_since_it_is_seen(void)
{
	begin();
	unseen(0, false);
	pass(200);
	seen(0, false);
	pass(100);
	seen(OPEN, false);
	CHECK(told() == 100);
}

static void a_window_that_opened_unseen_begins_anew_when_it_closes(void)
{
	begin();
	seen(0, true);
	pass(50);
	unseen(OPEN, false);
	pass(1000);
	seen(0, true);
	pass(20);
	seen(OPEN, false);
	CHECK(told() == 20);
}

static void each_of_several_is_told(void)
{
	begin();
	for (int took = 1; took < 10; took++) {
		seen(0, true);
		pass(took);
		seen(OPEN, false);
		CHECK(told() == took);
	}
}

static void nobody_waits_where_nothing_is_to_be_sent(void)
{
	begin();
	connection.tcp.write_seq = connection.tcp.snd_nxt;
	seen(0, true);
	pass(100);
	seen(OPEN, false);
	CHECK(told() == -1);
}

static void short_ones_are_no_events(void)
{
	begin();
	CONFIGURE(config, .window_threshold_ns = 50ull * MILLISECOND);
	seen(0, true);
	pass(49);
	seen(OPEN, false);
	CHECK(told() == -1);
	seen(0, true);
	pass(50);
	seen(OPEN, false);
	CHECK(told() == 50);
}

static void the_end_of_a_connection_ends_it(void)
{
	begin();
	seen(0, true);
	pass(70);
	inet_sock_set_state(NULL, sk, STATE_ESTABLISHED, STATE_CLOSE);
	CHECK(told() == 70);
}

static void a_window_that_opened_unseen_is_not_ended_by_it(void)
{
	begin();
	seen(0, true);
	pass(50);
	unseen(OPEN, false);
	pass(1000);
	inet_sock_set_state(NULL, sk, STATE_ESTABLISHED, STATE_CLOSE);
	CHECK(told() == -1);
}

static void open_windows_need_no_storage(void)
{
	begin();
	for (int i = 0; i < 100; i++)
		seen(OPEN, true);
	CHECK(bpf_sk_storage_get(&zero_windows, sk, NULL, 0) == NULL);
}

int main(void)
{
	RUN(from_the_segment_that_closed_it_to_the_one_that_opened_it);
	RUN(a_segment_that_closed_it_unseen_was_what_it_acknowledged_last);
	RUN(so_it_was_where_nothing_was_seen_until_it_opened);
	RUN(so_it_was_where_a_peer_took_back_what_it_had_offered);
	RUN(a_peer_that_has_acknowledged_nothing_is_told_since_it_is_seen);
	RUN(a_window_that_opened_unseen_begins_anew_when_it_closes);
	RUN(each_of_several_is_told);
	RUN(nobody_waits_where_nothing_is_to_be_sent);
	RUN(short_ones_are_no_events);
	RUN(the_end_of_a_connection_ends_it);
	RUN(a_window_that_opened_unseen_is_not_ended_by_it);
	RUN(open_windows_need_no_storage);
	return 0;
}

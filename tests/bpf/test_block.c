/* Requests to block devices, and those whose end the kernel tells nobody of. */
#include "sums.h"

#include "bpf/block.bpf.c"
#include "check.h"
#include "thread.h"

enum { TGID = 42, MS = 1000000, KIB = 1024, FAILED = 10 };

static struct gendisk disk = {.major = 254, .first_minor = 3}, other_disk = {.major = 8};
static struct request one, other;

static void begin(void)
{
	CONFIGURE(config, .latency_threshold_ns = 10 * MS);
	begin_thread(TGID);
	fake.now = 1000 * MS;
	at_work_on(9);
}

static void is_queued(struct request *request, struct gendisk *on, __u32 bytes)
{
	/* On the host every kernel has all that any has, so the disk is where it was before 5.17. */
	*request = (struct request){.q = (void *)on, .__data_len = bytes};
	block_io_start(NULL, request);
}

static void is_done(struct request *request, int error)
{
	block_rq_complete(NULL, request, error, request->__data_len);
}

static struct block_sum sum_of_span(__u64 span, const struct gendisk *on)
{
	struct block_key key = {
		.span = {.trace_id = {1, 2}, .span_id = span, .tgid = TGID, .match = MATCH_THREAD},
		.major = on->major,
		.minor = on->first_minor,
	};
	struct block_sum *found = bpf_map_lookup_elem(&sums_a, &key);

	return found ? *found : (struct block_sum){};
}

static struct block_device_totals totals(const struct gendisk *on)
{
	struct device_key key = {.major = on->major, .minor = on->first_minor};
	struct block_device_totals *found = bpf_map_lookup_elem(&devices, &key);

	return found ? *found : (struct block_device_totals){};
}

static const struct block_io *event(int index)
{
	return (const struct block_io *)fake.records[index];
}

static void requests_add_up_per_span_and_device(void)
{
	begin();
	is_queued(&one, &disk, 4 * KIB);
	fake.now += 1 * MS;
	is_done(&one, 0);
	is_queued(&one, &disk, 8 * KIB);
	fake.now += 3 * MS;
	is_done(&one, 0);
	is_queued(&one, &other_disk, 16 * KIB);
	is_done(&one, 0);
	CHECK(sum_of_span(9, &disk).count == 2 && sum_of_span(9, &disk).bytes == 12 * KIB);
	CHECK(sum_of_span(9, &disk).latency_ns == 4 * MS && sum_of_span(9, &disk).latency_max_ns == 3 * MS);
	CHECK(sum_of_span(9, &disk).first_ns == 1000 * MS && sum_of_span(9, &disk).last_ns == 1004 * MS);
	CHECK(sum_of_span(9, &other_disk).count == 1 && fake.submitted == 0);
}

static void a_request_is_whose_thread_queued_it(void)
{
	begin();
	is_queued(&one, &disk, 4 * KIB);
	at_work_on(10);
	is_done(&one, 0);
	CHECK(sum_of_span(9, &disk).count == 1 && sum_of_span(10, &disk).count == 0);
}

static void a_slow_one_is_an_event(void)
{
	begin();
	is_queued(&one, &disk, 4 * KIB);
	fake.now += 10 * MS;
	is_done(&one, 0);
	CHECK(fake.submitted == 1 && event(0)->event.duration_ns == 10 * MS && event(0)->event.span_id == 9);
	CHECK(event(0)->bytes == 4 * KIB && event(0)->major == 254 && event(0)->minor == 3);
	CHECK(event(0)->operation == BLOCK_READ && event(0)->queue_depth == 1);
}

static void a_failed_one_is_an_event_however_fast(void)
{
	begin();
	is_queued(&one, &disk, 4 * KIB);
	is_done(&one, FAILED);
	CHECK(fake.submitted == 1 && event(0)->event.error == FAILED);
	CHECK(sum_of_span(9, &disk).errors == 1 && totals(&disk).errors == 1);
}

static void its_end_is_when_the_last_byte_is_there(void)
{
	begin();
	is_queued(&one, &disk, 8 * KIB);
	block_rq_complete(NULL, &one, 0, 4 * KIB);
	CHECK(sum_of_span(9, &disk).count == 0 && totals(&disk).in_flight == 1);
	one.__data_len = 4 * KIB;
	block_rq_complete(NULL, &one, 0, 4 * KIB);
	CHECK(sum_of_span(9, &disk).count == 1 && sum_of_span(9, &disk).bytes == 8 * KIB);
}

static void who_is_under_way_is_the_queue(void)
{
	begin();
	is_queued(&one, &disk, 4 * KIB);
	is_queued(&other, &disk, 4 * KIB);
	CHECK(totals(&disk).in_flight == 2 && totals(&disk).in_flight_max == 2);
	is_done(&one, 0);
	is_done(&other, 0);
	CHECK(totals(&disk).in_flight == 0 && totals(&disk).requests == 2);
	CHECK(sum_of_span(9, &disk).queue_depth_max == 2);
}

static void without_a_span_the_device_counts_alone(void)
{
	begin();
	at_work_on(0);
	is_queued(&one, &disk, 4 * KIB);
	is_done(&one, 0);
	CHECK(totals(&disk).requests == 1 && totals(&disk).bytes == 4 * KIB);
	CHECK(fake_map_of(&sums_a)->used == 0);
}

/* The structure serves again; when and how the last one ended, nobody knows. */
static void what_ended_unseen_is_counted_and_has_no_latency(void)
{
	begin();
	is_queued(&one, &disk, 4 * KIB);
	fake.now += 60 * MS;
	at_work_on(10);
	is_queued(&one, &disk, 8 * KIB);
	CHECK(sum_of_span(9, &disk).count == 1 && sum_of_span(9, &disk).bytes == 4 * KIB);
	CHECK(sum_of_span(9, &disk).latency_ns == 0 && sum_of_span(9, &disk).last_ns == 1000 * MS);
	CHECK(totals(&disk).in_flight == 1 && totals(&disk).in_flight_max == 1 && totals(&disk).requests == 1);
	CHECK(fake.submitted == 0);
	fake.now += 2 * MS;
	is_done(&one, 0);
	CHECK(sum_of_span(10, &disk).count == 1 && sum_of_span(10, &disk).latency_ns == 2 * MS);
	CHECK(totals(&disk).in_flight == 0 && totals(&disk).requests == 2);
}

static void what_ended_unseen_without_a_span_is_the_device_s(void)
{
	begin();
	at_work_on(0);
	is_queued(&one, &disk, 4 * KIB);
	is_queued(&one, &disk, 4 * KIB);
	CHECK(totals(&disk).in_flight == 1 && totals(&disk).requests == 1);
	CHECK(fake_map_of(&sums_a)->used == 0);
}

static void an_end_of_what_nobody_saw_begin_is_nothing(void)
{
	begin();
	one = (struct request){.q = (void *)&disk, .__data_len = 4 * KIB};
	is_done(&one, 0);
	CHECK(fake.submitted == 0 && fake_map_of(&sums_a)->used == 0 && totals(&disk).requests == 0);
}

static void a_driver_may_take_a_request_twice(void)
{
	begin();
	one = (struct request){.q = (void *)&disk, .__data_len = 4 * KIB};
	block_rq_issue(NULL, &one);
	fake.now += 5 * MS;
	at_work_on(0);
	block_rq_issue(NULL, &one);
	is_done(&one, 0);
	CHECK(sum_of_span(9, &disk).count == 1 && sum_of_span(9, &disk).latency_ns == 5 * MS);
	CHECK(totals(&disk).requests == 1);
}

static void what_finds_no_room_is_counted_and_leaves_the_queue(void)
{
	__u32 lost = COUNTER_LOST_STATE;

	begin();
	is_queued(&one, &disk, 4 * KIB);
	is_done(&one, 0);
	fake_map_of(&requests)->used = FAKE_ROOM;
	is_queued(&other, &disk, 4 * KIB);
	CHECK(*bpf_map_lookup_elem(&counters, &lost) == 1 && totals(&disk).in_flight == 0);
}

int main(void)
{
	RUN(requests_add_up_per_span_and_device);
	RUN(a_request_is_whose_thread_queued_it);
	RUN(a_slow_one_is_an_event);
	RUN(a_failed_one_is_an_event_however_fast);
	RUN(its_end_is_when_the_last_byte_is_there);
	RUN(who_is_under_way_is_the_queue);
	RUN(without_a_span_the_device_counts_alone);
	RUN(what_ended_unseen_is_counted_and_has_no_latency);
	RUN(what_ended_unseen_without_a_span_is_the_device_s);
	RUN(an_end_of_what_nobody_saw_begin_is_nothing);
	RUN(a_driver_may_take_a_request_twice);
	RUN(what_finds_no_room_is_counted_and_leaves_the_queue);
	return 0;
}

/* Reading a thread's span: every way to its record, and everything that is none. */
#include "bpf/common/context.bpf.h"
#include "bpf/common/emit.bpf.h"
#include "check.h"
#include "follow.h"

enum { TGID = 42, TID = 43 };

static struct thread_record record;
static struct thread_record *variable; /* what the symbol otel_thread_ctx_v1 is */
static struct task_struct task;

static void publish(void)
{
	record = (struct thread_record){.trace_id = {1, 2}, .span_id = 3, .valid = 1, .trace_flags = 1};
	variable = &record;
}

static void begin(struct thread_layout layout)
{
	task = (struct task_struct){.tgid = TGID, .pid = TID};
	fake.task = &task;
	follow(TGID, layout);
	publish();
}

static __u64 counted(enum counter which)
{
	__u32 key = which;

	return *(__u64 *)bpf_map_lookup_elem(&counters, &key);
}

static void begin_static(void)
{
	begin((struct thread_layout){.offset = -64});
	task.thread.fsbase = (unsigned long)&variable + 64;
}

static void a_static_variable_lies_at_an_offset_from_the_thread_pointer(void)
{
	struct origin origin;

	begin_static();
	CHECK(current_origin(&origin));
	CHECK(origin.trace_id[0] == 1 && origin.trace_id[1] == 2 && origin.span_id == 3);
	CHECK(origin.match == MATCH_THREAD && origin.trace_flags == 1);
	CHECK(origin.tgid == TGID && origin.tid == TID);
}

/* glibc: pairs of words; the one before the first counts them. */
static unsigned long dtv[16];
static unsigned long control_block[2];
static char block[128];

static void begin_dynamic(unsigned long entries, unsigned long address)
{
	begin((struct thread_layout){.offset = 32, .module = 5, .dtv_pointer = 8, .dtv_stride = 16});
	dtv[0] = entries;
	dtv[2 + 2 * 5] = address;
	control_block[1] = (unsigned long)&dtv[2];
	task.thread.fsbase = (unsigned long)control_block;
	memcpy(block + 32, &variable, sizeof(variable));
}

static void a_dynamic_variable_is_found_through_the_table_of_its_thread(void)
{
	struct origin origin;

	begin_dynamic(5, (unsigned long)block);
	CHECK(current_origin(&origin));
	CHECK(origin.span_id == 3);
}

static void a_table_too_short_for_a_late_module_is_not_read_beyond(void)
{
	struct origin origin;

	begin_dynamic(4, (unsigned long)block);
	CHECK(!current_origin(&origin));
	CHECK(origin.match == MATCH_NONE && origin.span_id == 0 && origin.tgid == TGID);
}

static void a_block_that_the_thread_has_not_touched_has_no_record(void)
{
	struct origin origin;

	begin_dynamic(5, ~0ul);
	CHECK(!current_origin(&origin));
	begin_dynamic(5, 0);
	CHECK(!current_origin(&origin));
}

/* musl: single words; entry 0 counts them. */
static void musl_s_table_is_read_with_its_own_stride(void)
{
	static unsigned long table[6];
	struct origin origin;

	begin((struct thread_layout){.offset = 32, .module = 5, .dtv_pointer = 8, .dtv_stride = 8});
	memcpy(block + 32, &variable, sizeof(variable));
	table[0] = 5;
	table[5] = (unsigned long)block;
	control_block[1] = (unsigned long)table;
	task.thread.fsbase = (unsigned long)control_block;
	CHECK(current_origin(&origin));
	table[0] = 4;
	CHECK(!current_origin(&origin));
}

/* musl on AArch64: the table's address lies in front of where the thread pointer leads. */
static void a_table_may_lie_in_front_of_the_thread_pointer(void)
{
	static unsigned long table[6];
	struct origin origin;

	begin((struct thread_layout){.offset = 32, .module = 5, .dtv_pointer = -8, .dtv_stride = 8});
	memcpy(block + 32, &variable, sizeof(variable));
	table[0] = 5;
	table[5] = (unsigned long)block;
	control_block[0] = (unsigned long)table;
	task.thread.fsbase = (unsigned long)&control_block[1];
	CHECK(current_origin(&origin));
	CHECK(origin.span_id == 3);
}

/* A count that is not to be read says nothing about the table's length. */
static void a_table_whose_length_is_not_there_is_not_read(void)
{
	struct origin origin;

	begin_dynamic(5, (unsigned long)block);
	control_block[1] = 16; /* the count would lie at 0 */
	CHECK(!current_origin(&origin));
	control_block[1] = 0;
	CHECK(!current_origin(&origin));
}

static void what_is_no_valid_record_is_no_span(void)
{
	struct origin origin;

	begin_static();
	for (int valid = 0; valid < 256; valid++) {
		record.valid = valid;
		CHECK(current_origin(&origin) == (valid == 1));
	}
	variable = NULL;
	CHECK(!current_origin(&origin));
	CHECK(counted(COUNTER_UNREADABLE) == 0 && counted(COUNTER_ZERO_IDS) == 0);
}

/* As otel_bridge.context has them. */
static struct thread_variable both;

static void begin_behind(void)
{
	begin((struct thread_layout){.offset = -64, .counts_changes = 1});
	both = (struct thread_variable){.record = (unsigned long)&both.behind, .behind = record};
	task.thread.fsbase = (unsigned long)&both + 64;
}

static void a_record_behind_the_variable_is_read_along_with_it(void)
{
	struct origin origin;

	begin_behind();
	CHECK(current_origin(&origin));
	CHECK(origin.trace_id[0] == 1 && origin.trace_id[1] == 2 && origin.span_id == 3 && origin.trace_flags == 1);
	/* What stands there counts only where the variable says so. */
	both.record = 0;
	CHECK(!current_origin(&origin));
	both.record = (unsigned long)&record;
	record.span_id = 4;
	CHECK(current_origin(&origin) && origin.span_id == 4);
}

static void a_record_that_is_being_written_is_counted(void)
{
	struct origin origin;

	begin_behind();
	both.behind.valid = 0;
	both.behind.changes = 6;
	CHECK(!current_origin(&origin) && counted(COUNTER_TORN) == 0);
	both.behind.changes = 7;
	CHECK(!current_origin(&origin) && counted(COUNTER_TORN) == 1);
	/* The same elsewhere. */
	record = both.behind;
	both.record = (unsigned long)&record;
	CHECK(!current_origin(&origin) && counted(COUNTER_TORN) == 2);
	/* Whole, although the count is not done with. */
	record.valid = 1;
	CHECK(current_origin(&origin) && counted(COUNTER_TORN) == 2);
}

static void of_a_writer_that_counts_no_changes_an_attribute_is_not_taken_for_a_count(void)
{
	struct origin origin;

	begin_static();
	record.valid = 0;
	record.changes = 7;
	CHECK(!current_origin(&origin) && counted(COUNTER_TORN) == 0);
}

static void zero_ids_are_counted(void)
{
	struct origin origin;

	begin_static();
	record.span_id = 0;
	CHECK(!current_origin(&origin));
	publish();
	record.trace_id[0] = record.trace_id[1] = 0;
	CHECK(!current_origin(&origin));
	CHECK(origin.span_id == 0);
	CHECK(counted(COUNTER_ZERO_IDS) == 2);
	publish();
	record.trace_id[0] = 0; /* half of a trace id may be */
	CHECK(current_origin(&origin));
}

static void memory_that_is_not_there_is_counted(void)
{
	struct origin origin;

	begin_static();
	variable = (void *)8;
	CHECK(!current_origin(&origin));
	CHECK(counted(COUNTER_UNREADABLE) == 1);
	task.thread.fsbase = 0;
	CHECK(!current_origin(&origin));
}

static void a_process_that_is_not_followed_is_not_read(void)
{
	struct origin origin;

	begin_static();
	task.tgid = 7;
	task.thread.fsbase = 1;
	CHECK(!current_origin(&origin));
	CHECK(origin.tgid == 7 && counted(COUNTER_UNREADABLE) == 0);
}

static void every_event_is_counted_whether_there_is_room_or_not(void)
{
	for (int i = 0; i < 23; i++) {
		fake.ring_full = i % 2;
		if (reserve(sizeof(struct kernel_event), i))
			bpf_ringbuf_submit(NULL, 0);
	}
	CHECK(counted(COUNTER_PRODUCED) == 23);
	CHECK(counted(COUNTER_DROPPED) == 11);
	CHECK(fake.submitted == 12);
}

static void a_filled_event_leaves_no_byte_unwritten(void)
{
	struct origin origin;
	struct kernel_event *event;

	begin_static();
	CHECK(current_origin(&origin));
	event = reserve(sizeof(*event), 99);
	fill(event, EVENT_TCP_RETRANSMIT, &origin, 99);
	for (size_t i = 0; i < sizeof(*event); i++)
		CHECK(((unsigned char *)event)[i] != 0xa5);
	CHECK(event->kind == EVENT_TCP_RETRANSMIT && event->time_ns == 99 && event->tid == TID);
}

int main(void)
{
	RUN(a_static_variable_lies_at_an_offset_from_the_thread_pointer);
	RUN(a_dynamic_variable_is_found_through_the_table_of_its_thread);
	RUN(a_table_too_short_for_a_late_module_is_not_read_beyond);
	RUN(a_block_that_the_thread_has_not_touched_has_no_record);
	RUN(musl_s_table_is_read_with_its_own_stride);
	RUN(a_table_may_lie_in_front_of_the_thread_pointer);
	RUN(a_table_whose_length_is_not_there_is_not_read);
	RUN(what_is_no_valid_record_is_no_span);
	RUN(a_record_behind_the_variable_is_read_along_with_it);
	RUN(a_record_that_is_being_written_is_counted);
	RUN(of_a_writer_that_counts_no_changes_an_attribute_is_not_taken_for_a_count);
	RUN(zero_ids_are_counted);
	RUN(memory_that_is_not_there_is_counted);
	RUN(a_process_that_is_not_followed_is_not_read);
	RUN(every_event_is_counted_whether_there_is_room_or_not);
	RUN(a_filled_event_leaves_no_byte_unwritten);
	return 0;
}

/* Waits, and those whose end the kernel tells nobody of. */
#include "sums.h"

#include "bpf/sched.bpf.c"
#include "check.h"

enum { TGID = 42, BLOCKED = 1, MS = 1000000 };

static struct task_struct thread, other = {.tgid = 7, .pid = 7};
static struct pt_regs___frame registers;
static struct thread_record record;
static struct thread_record *variable = &record;

static void at_work_on(__u64 span)
{
	record = (struct thread_record){.trace_id = {1, 2}, .span_id = span, .valid = span != 0};
}

static void begin(void)
{
	struct thread_layout layout = {};
	__u32 tgid = TGID;

	CONFIGURE(config, .run_queue_threshold_ns = 10 * MS, .off_cpu_threshold_ns = 10 * MS);
	thread = (struct task_struct){
		.tgid = TGID, .pid = TGID, .mm = &thread, .thread.fsbase = (unsigned long)&variable};
	bpf_map_update_elem(&processes, &tgid, &layout, BPF_ANY);
	fake.now = 1000 * MS;
	fake.registers = &registers;
	at_work_on(9);
}

/* What the scheduler accounts when a thread that ran so long leaves. */
static void run_for(__u64 ns)
{
	thread.se.prev_sum_exec_runtime = thread.se.sum_exec_runtime;
	thread.se.sum_exec_runtime += ns;
	fake.now += ns;
}

static void leaves(unsigned int state)
{
	thread.__state = state;
	sched_switch(NULL, false, &thread, &other);
}

static void comes(void)
{
	sched_switch(NULL, false, &other, &thread);
}

static struct sched_sum sum_of_span(__u64 span)
{
	struct span_key key = {.trace_id = {1, 2}, .span_id = span, .tgid = TGID, .match = MATCH_THREAD};
	struct sched_sum *found = bpf_map_lookup_elem(&sums, &key);

	return found ? *found : (struct sched_sum){};
}

static const struct sched_wait *event(int index)
{
	return (const struct sched_wait *)fake.records[index];
}

static void a_sleep_is_off_cpu_time_and_then_the_queue(void)
{
	begin();
	leaves(BLOCKED);
	fake.now += 30 * MS;
	sched_wakeup(NULL, &thread);
	fake.now += 2 * MS;
	comes();
	CHECK(fake.submitted == 1);
	CHECK(event(0)->off_cpu_ns == 30 * MS && event(0)->run_queue_ns == 2 * MS);
	CHECK(sum_of_span(9).off_cpu_count == 1 && sum_of_span(9).off_cpu_ns == 30 * MS);
	CHECK(sum_of_span(9).run_queue_count == 1 && sum_of_span(9).run_queue_ns == 2 * MS);
}

static void a_long_wait_has_the_stack_of_who_waited(void)
{
	begin();
	CONFIGURE(config, .run_queue_threshold_ns = 10 * MS, .off_cpu_threshold_ns = 10 * MS, .stacks = 1);
	leaves(BLOCKED);
	fake.now += 30 * MS;
	comes();
	CHECK(event(0)->kernel_stack[0] == (__u64)(unsigned long)&thread && event(0)->kernel_stack[1] == 0);
	/* Whoever came back unseen is somewhere else by now. */
	leaves(BLOCKED);
	fake.now += 30 * MS;
	run_for(1 * MS);
	leaves(BLOCKED);
	CHECK(fake.submitted == 2 && event(1)->kernel_stack[0] == 0);
}

static void who_is_preempted_waits_for_a_cpu_alone(void)
{
	begin();
	leaves(0);
	fake.now += 11 * MS;
	comes();
	CHECK(fake.submitted == 1);
	CHECK(event(0)->off_cpu_ns == 0 && event(0)->run_queue_ns == 11 * MS);
	CHECK(sum_of_span(9).off_cpu_count == 0);
}

static void a_short_wait_is_in_the_sums_alone(void)
{
	begin();
	leaves(BLOCKED);
	fake.now += 1 * MS;
	sched_wakeup(NULL, &thread);
	comes();
	CHECK(fake.submitted == 0);
	CHECK(sum_of_span(9).off_cpu_count == 1);
}

static void a_thread_that_came_unseen_came_when_it_began_to_run(void)
{
	begin();
	leaves(BLOCKED);
	fake.now += 30 * MS;
	sched_wakeup(NULL, &thread);
	fake.now += 3 * MS;
	run_for(5 * MS);
	at_work_on(10);
	leaves(BLOCKED);
	CHECK(fake.submitted == 1);
	CHECK(event(0)->event.span_id == 9);
	CHECK(event(0)->off_cpu_ns == 30 * MS && event(0)->run_queue_ns == 3 * MS);
	CHECK(event(0)->event.time_ns == 1033 * MS);
	/* Its next wait has begun all the same. */
	fake.now += 40 * MS;
	sched_wakeup(NULL, &thread);
	comes();
	CHECK(fake.submitted == 2);
	CHECK(event(1)->event.span_id == 10 && event(1)->off_cpu_ns == 40 * MS);
}

static void a_wait_that_ended_unseen_is_told_of_when_the_span_is_over(void)
{
	begin();
	leaves(BLOCKED);
	fake.now += 30 * MS;
	sched_wakeup(NULL, &thread);
	run_for(1 * MS);
	at_work_on(0);
	leaves(BLOCKED);
	CHECK(fake.submitted == 1 && event(0)->event.span_id == 9 && event(0)->off_cpu_ns == 30 * MS);
	fake.now += 30 * MS;
	comes();
	CHECK(fake.submitted == 1);
}

static void a_wait_that_ended_unseen_is_told_of_when_the_thread_ends(void)
{
	begin();
	leaves(BLOCKED);
	fake.now += 30 * MS;
	sched_wakeup(NULL, &thread);
	run_for(1 * MS);
	thread.mm = NULL;
	leaves(STATE_DEAD);
	CHECK(fake.submitted == 1 && event(0)->off_cpu_ns == 30 * MS);
}

static void nobody_ran_before_it_was_woken(void)
{
	begin();
	leaves(BLOCKED);
	fake.now += 30 * MS;
	sched_wakeup(NULL, &thread);
	fake.now += 2 * MS;
	/* The scheduler's clock counts otherwise than ours. */
	thread.se.sum_exec_runtime += 100 * MS;
	leaves(BLOCKED);
	CHECK(fake.submitted == 1);
	CHECK(event(0)->off_cpu_ns == 30 * MS && event(0)->run_queue_ns == 0);
}

static void one_whose_wakeup_nobody_told_of_was_blocked_until_it_ran(void)
{
	begin();
	leaves(BLOCKED);
	fake.now += 30 * MS;
	run_for(1 * MS);
	leaves(BLOCKED);
	CHECK(fake.submitted == 1);
	CHECK(event(0)->off_cpu_ns == 30 * MS && event(0)->run_queue_ns == 0);
}

static void without_a_span_nothing_is_summed(void)
{
	begin();
	at_work_on(0);
	leaves(BLOCKED);
	fake.now += 30 * MS;
	comes();
	CHECK(fake.submitted == 0);
	CHECK(fake_map_of(&sums)->used == 0);
}

static void a_full_ring_is_counted_and_the_sums_still_hold_the_wait(void)
{
	begin();
	fake.ring_full = true;
	leaves(BLOCKED);
	fake.now += 30 * MS;
	comes();
	CHECK(fake.submitted == 0);
	CHECK(sum_of_span(9).off_cpu_count == 1);
}

int main(void)
{
	RUN(a_sleep_is_off_cpu_time_and_then_the_queue);
	RUN(a_long_wait_has_the_stack_of_who_waited);
	RUN(who_is_preempted_waits_for_a_cpu_alone);
	RUN(a_short_wait_is_in_the_sums_alone);
	RUN(a_thread_that_came_unseen_came_when_it_began_to_run);
	RUN(a_wait_that_ended_unseen_is_told_of_when_the_span_is_over);
	RUN(a_wait_that_ended_unseen_is_told_of_when_the_thread_ends);
	RUN(nobody_ran_before_it_was_woken);
	RUN(one_whose_wakeup_nobody_told_of_was_blocked_until_it_ran);
	RUN(without_a_span_nothing_is_summed);
	RUN(a_full_ring_is_counted_and_the_sums_still_hold_the_wait);
	return 0;
}

/* Waits, and those whose end the kernel tells nobody of. */
#include "sums.h"

#include "bpf/sched.bpf.c"
#include "check.h"
#include "thread.h"

enum { TGID = 42, BLOCKED = 1, MS = 1000000 };

/* The scheduler's clock is another one. */
#define ITS_OWN (77ull * MS)

static enum teller teller;
static struct task_struct other = {.tgid = 7, .pid = 7};
static struct rq cpu;
static struct cfs_rq queue = {.rq = &cpu};
static struct pt_regs___frame registers;

static void pass(__u64 ns)
{
	fake.now += ns;
	cpu.clock += ns;
}

static struct rows_head *head(void)
{
	__u32 zero = 0;

	return (void *)bpf_map_lookup_elem(&sums_a, &zero);
}

/* As user space has a table filled. */
static void sums_are_taken(void)
{
	__u64 turn = head()->turn;

	fake_map_of(&sums_a)->used = 0;
	*head() = (struct rows_head){.turn = turn + 1, .taken = ROWS_A_LOT};
}

static void begin(void)
{
	CONFIGURE(config, .run_queue_threshold_ns = 10 * MS, .off_cpu_threshold_ns = 10 * MS);
	begin_thread(TGID);
	thread.se.cfs_rq = other.se.cfs_rq = &queue;
	fake.now = cpu.clock = 0;
	pass(1000 * MS);
	cpu.clock += ITS_OWN;
	fake.registers = &registers;
	at_work_on(9);
	sums_are_taken();
}

static void switch_between(struct task_struct *previous, struct task_struct *next)
{
	if (teller == ACCOUNTS)
		sched_switch(NULL, false, previous, next);
	else
		sched_switch_of_woken(NULL, false, previous, next);
}

static void leaves_unseen(unsigned int state)
{
	thread.__state = state;
	thread.nvcsw += state != 0;
	thread.nivcsw += state == 0;
}

static void leaves(unsigned int state)
{
	leaves_unseen(state);
	switch_between(&thread, &other);
	if (state == 0)
		thread.sched_info.last_queued = cpu.clock;
}

static void is_woken(void)
{
	if (!thread.sched_info.last_queued)
		thread.sched_info.last_queued = cpu.clock;
	if (teller == WAKEUPS)
		sched_wakeup(NULL, &thread);
}

/* It comes, and the kernel tells nobody. */
static void comes_unseen(void)
{
	if (thread.sched_info.last_queued)
		thread.sched_info.run_delay += cpu.clock - thread.sched_info.last_queued;
	thread.sched_info.last_queued = 0;
	thread.sched_info.last_arrival = cpu.clock;
	thread.sched_info.pcount++;
	thread.se.prev_sum_exec_runtime = thread.se.sum_exec_runtime;
}

static void comes(void)
{
	switch_between(&other, &thread);
	comes_unseen();
}

static void run_for(__u64 ns)
{
	thread.se.sum_exec_runtime += ns;
	pass(ns);
}

static const struct sched_row *row_at(int number)
{
	__u32 place = ROWS_A_LOT + number;

	return bpf_map_lookup_elem(&sums_a, &place);
}

static int rows(void)
{
	int count = 0;

	while (row_at(count) && row_at(count)->sum.first_ns)
		count++;
	return count;
}

/* Its first row. */
static struct sched_sum sum_of_span(__u64 span)
{
	struct span_key key = {.trace_id = {1, 2}, .span_id = span, .tgid = TGID, .match = MATCH_THREAD};

	for (int i = 0; i < rows(); i++)
		if (same_key(&row_at(i)->key, &key))
			return row_at(i)->sum;
	return (struct sched_sum){};
}

static const struct sched_wait *event(int index)
{
	return (const struct sched_wait *)fake.records[index];
}

static void a_sleep_is_off_cpu_time_and_then_the_queue(void)
{
	begin();
	leaves(BLOCKED);
	pass(30 * MS);
	is_woken();
	pass(2 * MS);
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
	pass(30 * MS);
	comes();
	CHECK(event(0)->kernel_stack[0] == (__u64)(unsigned long)&thread && event(0)->kernel_stack[1] == 0);
	/* Whoever came back unseen is somewhere else by now. */
	leaves(BLOCKED);
	pass(30 * MS);
	is_woken();
	comes_unseen();
	run_for(1 * MS);
	leaves(BLOCKED);
	CHECK(fake.submitted == 2 && event(1)->kernel_stack[0] == 0);
	/* And who waited for a CPU, waited for nothing else. */
	pass(1 * MS);
	is_woken();
	pass(20 * MS);
	comes();
	CHECK(fake.submitted == 3 && event(2)->run_queue_ns == 20 * MS && event(2)->kernel_stack[0] == 0);
}

static void who_is_preempted_waits_for_a_cpu_alone(void)
{
	begin();
	leaves(0);
	pass(11 * MS);
	comes();
	CHECK(fake.submitted == 1);
	CHECK(event(0)->off_cpu_ns == 0 && event(0)->run_queue_ns == 11 * MS);
	CHECK(sum_of_span(9).off_cpu_count == 0);
}

static void a_short_wait_is_in_the_sums_alone(void)
{
	begin();
	leaves(BLOCKED);
	pass(1 * MS);
	is_woken();
	comes();
	CHECK(fake.submitted == 0);
	CHECK(sum_of_span(9).off_cpu_count == 1);
}

static void a_thread_that_came_unseen_came_when_it_began_to_run(void)
{
	begin();
	leaves(BLOCKED);
	pass(30 * MS);
	is_woken();
	pass(3 * MS);
	comes_unseen();
	run_for(5 * MS);
	at_work_on(10);
	leaves(BLOCKED);
	CHECK(fake.submitted == 1);
	CHECK(event(0)->event.span_id == 9);
	CHECK(event(0)->off_cpu_ns == 30 * MS && event(0)->run_queue_ns == 3 * MS);
	CHECK(event(0)->event.time_ns == 1033 * MS);
	/* Its next wait has begun all the same. */
	pass(40 * MS);
	is_woken();
	comes();
	CHECK(fake.submitted == 2);
	CHECK(event(1)->event.span_id == 10 && event(1)->off_cpu_ns == 40 * MS);
}

static void a_wait_that_ended_unseen_is_told_of_when_the_span_is_over(void)
{
	begin();
	leaves(BLOCKED);
	pass(30 * MS);
	is_woken();
	comes_unseen();
	run_for(1 * MS);
	at_work_on(0);
	leaves(BLOCKED);
	CHECK(fake.submitted == 1 && event(0)->event.span_id == 9 && event(0)->off_cpu_ns == 30 * MS);
	pass(30 * MS);
	comes();
	CHECK(fake.submitted == 1);
}

static void a_wait_that_ended_unseen_is_told_of_when_the_thread_ends(void)
{
	begin();
	leaves(BLOCKED);
	pass(30 * MS);
	is_woken();
	comes_unseen();
	run_for(1 * MS);
	thread.mm = NULL;
	leaves(STATE_DEAD);
	CHECK(fake.submitted == 1 && event(0)->off_cpu_ns == 30 * MS);
}

static void nobody_ran_before_it_was_woken(void)
{
	begin();
	leaves(BLOCKED);
	pass(30 * MS);
	is_woken();
	comes_unseen();
	pass(2 * MS);
	/* The scheduler's clock counts otherwise than ours. */
	thread.se.sum_exec_runtime += 100 * MS;
	cpu.clock += 100 * MS;
	leaves(BLOCKED);
	if (teller == WAKEUPS)
		CHECK(event(0)->off_cpu_ns == 30 * MS && event(0)->run_queue_ns == 0);
	else
		CHECK(fake.submitted == 0 && sum_of_span(9).off_cpu_ns == 0 && sum_of_span(9).run_queue_ns == 0);
}

static void one_whose_wakeup_nobody_told_of_was_blocked_until_it_ran(void)
{
	begin();
	leaves(BLOCKED);
	pass(30 * MS);
	thread.sched_info.last_queued = cpu.clock;
	comes_unseen();
	run_for(1 * MS);
	leaves(BLOCKED);
	CHECK(fake.submitted == 1);
	CHECK(event(0)->off_cpu_ns == 30 * MS && event(0)->run_queue_ns == 0);
}

static void who_is_moved_to_another_cpu_has_waited_in_both_queues(void)
{
	struct rq another = {};
	struct cfs_rq its = {.rq = &another};

	begin();
	leaves(BLOCKED);
	pass(30 * MS);
	is_woken();
	pass(4 * MS);
	/* Each CPU's clock may stand elsewhere. */
	thread.sched_info.run_delay += 4 * MS;
	another.clock = 5 * MS;
	thread.sched_info.last_queued = another.clock;
	thread.se.cfs_rq = &its;
	pass(3 * MS);
	another.clock += 3 * MS;
	switch_between(&other, &thread);
	CHECK(event(0)->off_cpu_ns == 30 * MS && event(0)->run_queue_ns == 7 * MS);
}

/* As /proc shows it, also where it says more than another clock. */
static void the_scheduler_s_figure_holds(void)
{
	begin();
	leaves(0);
	pass(11 * MS);
	cpu.clock += 1 * MS;
	comes();
	CHECK(event(0)->off_cpu_ns == 0);
	CHECK(event(0)->run_queue_ns == (teller == ACCOUNTS ? 12 : 11) * MS);
	CHECK(event(0)->event.duration_ns == event(0)->run_queue_ns);
}

static void waits_for(__u64 ms)
{
	leaves(BLOCKED);
	pass(ms * MS);
	is_woken();
	comes();
}

static void a_thread_s_waits_for_one_span_are_one_row(void)
{
	begin();
	waits_for(1);
	waits_for(3);
	waits_for(2);
	CHECK(rows() == 1);
	CHECK(sum_of_span(9).off_cpu_count == 3 && sum_of_span(9).off_cpu_ns == 6 * MS);
	CHECK(sum_of_span(9).off_cpu_max_ns == 3 * MS && sum_of_span(9).run_queue_count == 0);
	CHECK(sum_of_span(9).first_ns == 1000 * MS && sum_of_span(9).last_ns == 1006 * MS);
	leaves(0);
	pass(5 * MS);
	comes();
	leaves(0);
	pass(4 * MS);
	comes();
	CHECK(rows() == 1);
	CHECK(sum_of_span(9).run_queue_count == 2 && sum_of_span(9).run_queue_ns == 9 * MS);
	CHECK(sum_of_span(9).run_queue_max_ns == 5 * MS && sum_of_span(9).off_cpu_count == 3);
}

static void every_span_and_every_thread_has_rows_of_its_own(void)
{
	struct task_struct mate;

	begin();
	waits_for(1);
	mate = thread;
	mate.pid++;
	switch_between(&mate, &other);
	pass(5 * MS);
	mate.sched_info.last_queued = cpu.clock;
	switch_between(&other, &mate);
	CHECK(rows() == 2 && sum_of_span(9).off_cpu_ns == 1 * MS && row_at(1)->sum.off_cpu_ns == 5 * MS);
	at_work_on(10);
	waits_for(2);
	CHECK(rows() == 3 && sum_of_span(10).off_cpu_count == 1 && sum_of_span(10).off_cpu_ns == 2 * MS);
	at_work_on(9);
	waits_for(3);
	CHECK(rows() == 4 && row_at(3)->key.span_id == 9 && row_at(3)->sum.off_cpu_ns == 3 * MS);
}

static void a_span_of_the_same_number_in_another_trace_is_another(void)
{
	begin();
	waits_for(1);
	record.trace_id[0]++;
	waits_for(2);
	record.trace_id[0]--;
	record.trace_id[1]++;
	waits_for(3);
	record.trace_flags = 1;
	waits_for(4);
	CHECK(rows() == 4 && sum_of_span(9).off_cpu_ns == 1 * MS);
}

static void a_row_that_is_taken_is_not_added_to(void)
{
	begin();
	waits_for(1);
	sums_are_taken();
	waits_for(2);
	CHECK(rows() == 1 && sum_of_span(9).off_cpu_count == 1 && sum_of_span(9).off_cpu_ns == 2 * MS);
}

static void a_cpu_goes_on_behind_the_lots_of_others(void)
{
	begin();
	for (int i = 0; i < ROWS_A_LOT; i++) {
		at_work_on(100 + i);
		waits_for(1);
	}
	CHECK(rows() == ROWS_A_LOT && head()->taken == 2 * ROWS_A_LOT);
	/* Another CPU's. */
	head()->taken += ROWS_A_LOT;
	at_work_on(9);
	waits_for(1);
	CHECK(rows() == ROWS_A_LOT && row_at(2 * ROWS_A_LOT)->key.span_id == 9);
	CHECK(head()->taken == 4 * ROWS_A_LOT);
}

static void a_full_table_is_counted(void)
{
	__u32 produced = COUNTER_PRODUCED, dropped = COUNTER_DROPPED;

	begin();
	waits_for(1);
	fake_map_of(&sums_a)->used = FAKE_ROOM;
	at_work_on(10);
	waits_for(1);
	CHECK(*bpf_map_lookup_elem(&counters, &produced) == 2);
	CHECK(*bpf_map_lookup_elem(&counters, &dropped) == 1);
}

static void a_thread_whose_number_ends_alike_hides_no_wait(void)
{
	struct task_struct alike;
	__u64 *like;

	begin();
	alike = thread;
	alike.pid += PLACES;
	alike.__state = BLOCKED;
	leaves(BLOCKED);
	switch_between(&alike, &other);
	pass(3 * MS);
	switch_between(&other, &alike);
	pass(27 * MS);
	comes();
	CHECK(fake.submitted == 1 && event(0)->off_cpu_ns == 30 * MS);
	CHECK(rows() == 2 && row_at(0)->sum.off_cpu_ns == 3 * MS && row_at(1)->sum.off_cpu_ns == 30 * MS);
	like = waiting_like(&thread);
	CHECK(like && *like == 0);
}

static void without_a_span_nothing_is_summed(void)
{
	begin();
	at_work_on(0);
	leaves(BLOCKED);
	pass(30 * MS);
	comes();
	CHECK(fake.submitted == 0);
	CHECK(rows() == 0);
}

static void a_full_ring_is_counted_and_the_sums_still_hold_the_wait(void)
{
	begin();
	fake.ring_full = true;
	leaves(BLOCKED);
	pass(30 * MS);
	comes();
	CHECK(fake.submitted == 0);
	CHECK(sum_of_span(9).off_cpu_count == 1);
}

/* As while the probe was switched off. */
static void what_nobody_saw_is_no_wait(void)
{
	__u64 *like;

	begin();
	leaves(BLOCKED);
	pass(1 * MS);
	comes_unseen();
	leaves_unseen(BLOCKED);
	pass(60 * MS);
	is_woken();
	comes();
	CHECK(fake.submitted == 0 && rows() == 0);
	leaves(BLOCKED);
	pass(1 * MS);
	comes_unseen();
	leaves_unseen(BLOCKED);
	pass(60 * MS);
	comes_unseen();
	at_work_on(10);
	leaves(BLOCKED);
	CHECK(fake.submitted == 0 && rows() == 0);
	pass(20 * MS);
	comes();
	CHECK(fake.submitted == 1 && event(0)->event.span_id == 10 && event(0)->off_cpu_ns == 20 * MS);
	like = waiting_like(&thread);
	CHECK(like && *like == 0);
}

int main(void)
{
	for (teller = ACCOUNTS; teller <= WAKEUPS; teller++) {
		printf("by %s\n", teller == ACCOUNTS ? "accounts" : "wakeups");
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
		RUN(the_scheduler_s_figure_holds);
		RUN(a_thread_s_waits_for_one_span_are_one_row);
		RUN(every_span_and_every_thread_has_rows_of_its_own);
		RUN(a_span_of_the_same_number_in_another_trace_is_another);
		RUN(a_row_that_is_taken_is_not_added_to);
		RUN(a_cpu_goes_on_behind_the_lots_of_others);
		RUN(a_full_table_is_counted);
		RUN(what_nobody_saw_is_no_wait);
		RUN(a_thread_whose_number_ends_alike_hides_no_wait);
	}
	teller = ACCOUNTS;
	RUN(who_is_moved_to_another_cpu_has_waited_in_both_queues);
	return 0;
}

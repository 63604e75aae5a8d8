/* Time a span's threads spend off the CPU, and runnable without one. */
#include "sched.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"
#include "common/rows.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

CONSTANTS(struct sched_config, config);

ROWS_OF(struct sched_row)

enum { STATE_DEAD = 0x80 }; /* TASK_DEAD */

/* A thread that left the CPU while it worked on a span. */
struct wait {
	__u64 off_ns; /* 0: it is not waiting */
	union {
		__u64 queued_ns; /* by the scheduler's accounts: how long it had been in queues until then */
		__u64 runnable_ns; /* by wakeups: since when it is in one; 0: still blocked */
	};
	struct origin origin;
	__u64 turns; /* on a CPU, that it had had until then */
	struct own_row row; /* of the last span that it waited for */
	__u64 user_stack[STACK_DEPTH];
};

STORAGE(waits, BPF_MAP_TYPE_TASK_STORAGE, struct wait);

/* How many threads wait, by the last bits of their number: where none does, no storage need be looked at. Most of
 * those that come and go are at no span, and their storage lies where nobody has looked for long. What is left over of
 * threads that ended while the probe was switched off costs a look.
 */
enum { PLACES = 1 << 14 };

MAP(waiting, BPF_MAP_TYPE_ARRAY, PLACES, __u32, __u64);

static __always_inline __u64 *waiting_like(struct task_struct *task)
{
	__u32 place = FIELD(task, pid) & (PLACES - 1);

	return bpf_map_lookup_elem(&waiting, &place);
}

/* The wait that a thread is in, or NULL. */
static __always_inline struct wait *wait_of(struct task_struct *task)
{
	const __u64 *some = waiting_like(task);
	struct wait *wait;

	if (!some || !*some)
		return NULL;
	wait = bpf_task_storage_get(&waits, task, NULL, 0);
	return wait && wait->off_ns ? wait : NULL;
}

static __always_inline void waits_from(struct task_struct *task, struct wait *wait, __u64 now)
{
	__u64 *like = waiting_like(task);

	wait->off_ns = now;
	if (like)
		__sync_fetch_and_add(like, 1);
}

static __always_inline void waits_no_more(struct task_struct *task, struct wait *wait)
{
	__u64 *like = waiting_like(task);

	wait->off_ns = 0;
	if (like)
		__sync_fetch_and_add(like, -1);
}

enum { FRAME_LARGEST = 1 << 16 };

/* Whether a frame may lie there: a register that is used for something else leads elsewhere, and reading what is not
 * there takes the kernel longer than all the rest.
 */
static __always_inline bool is_frame(__u64 above, __u64 pointer)
{
	return pointer % sizeof(pointer) == 0 && pointer - above < FRAME_LARGEST;
}

/* Return addresses by frame pointers, as bpf_get_stack() finds them, but in less time: stacks are taken where each
 * wait begins, long before it is known to be a long one.
 */
static __always_inline void note_stack(void *ctx, struct task_struct *task, __u64 *stack)
{
	struct frame {
		__u64 next;
		__u64 return_address;
	} frame;
	struct user_registers registers;
	__u64 above, pointer;

	if (!user_registers(task, &registers)) {
		__builtin_memset(stack, 0, sizeof(__u64[STACK_DEPTH]));
		if (bpf_get_stack(ctx, stack, sizeof(__u64[STACK_DEPTH]), BPF_F_USER_STACK) < 0)
			stack[0] = 0;
		return;
	}
	stack[0] = registers.place;
	above = registers.stack;
	pointer = registers.frame;
	for (int i = 1; i < STACK_DEPTH; i++) {
		stack[i] = 0;
		if (!is_frame(above, pointer) || bpf_probe_read_user(&frame, sizeof(frame), (void *)pointer) ||
		    !frame.return_address)
			break;
		stack[i] = frame.return_address;
		above = pointer + 1;
		pointer = frame.next;
	}
}

static __always_inline void add_to_span(struct wait *wait, __u64 run_queue, __u64 off_cpu, __u64 now)
{
	struct span_key key = span_key_of(&wait->origin);
	bool is_new;
	struct sched_row *row = row_of_span(&wait->row, &key, &is_new);
	struct sched_sum *sum;

	if (!row)
		return;
	sum = &row->sum;
	/* What is written, and not read before, need not be fetched from far away. */
	if (is_new) {
		*sum = (struct sched_sum){
			.first_ns = wait->off_ns,
			.last_ns = now,
			.run_queue_ns = run_queue,
			.off_cpu_ns = off_cpu,
			.run_queue_max_ns = run_queue,
			.off_cpu_max_ns = off_cpu,
			.run_queue_count = run_queue != 0,
			.off_cpu_count = off_cpu != 0,
		};
		return;
	}
	sum->last_ns = now;
	sum->run_queue_ns += run_queue;
	sum->run_queue_count += run_queue != 0;
	raise_to(&sum->run_queue_max_ns, run_queue);
	sum->off_cpu_ns += off_cpu;
	sum->off_cpu_count += off_cpu != 0;
	raise_to(&sum->off_cpu_max_ns, off_cpu);
}

/* The kernel's stack says what a thread waited for: of one that waited for a CPU most of the time, or that is back
 * already, it says nothing.
 */
static __always_inline void long_wait(const struct wait *wait, struct task_struct *task, bool still_waits,
				      __u64 run_queue, __u64 off_cpu, __u64 now)
{
	struct sched_wait *record = reserve(sizeof(*record), now);

	if (!record)
		return;
	fill(&record->event, EVENT_SCHED_WAIT, &wait->origin, now);
	record->event.duration_ns = run_queue + off_cpu;
	record->run_queue_ns = run_queue;
	record->off_cpu_ns = off_cpu;
	__builtin_memcpy(record->user_stack, wait->user_stack, sizeof(record->user_stack));
	__builtin_memset(record->kernel_stack, 0, sizeof(record->kernel_stack));
	if (still_waits && off_cpu >= run_queue && CONSTANT(config, stacks))
		kernel_stack(task, record->kernel_stack, sizeof(record->kernel_stack));
	bpf_ringbuf_submit(record, 0);
}

/* `run_queue` is what the teller says. The scheduler counts by another clock, and from a moment before the thread is
 * seen to leave: its figure holds, and may be a little longer than the wait was.
 */
static __always_inline void end_wait(struct wait *wait, struct task_struct *task, bool still_waits, __u64 run_queue,
				     __u64 now)
{
	__u64 took = now - wait->off_ns;
	__u64 off_cpu = took > run_queue ? took - run_queue : 0;

	add_to_span(wait, run_queue, off_cpu, now);
	if (run_queue >= CONSTANT(config, run_queue_threshold_ns) ||
	    off_cpu >= CONSTANT(config, off_cpu_threshold_ns))
		long_wait(wait, task, still_waits, run_queue, off_cpu, now);
	waits_no_more(task, wait);
}

/* Reading the clock takes as long as all that is done for a thread that nobody follows. */
static __always_inline __u64 once(__u64 *now)
{
	if (!*now)
		*now = bpf_ktime_get_boot_ns();
	return *now;
}

/* How a thread's time in the queue is told: by what the scheduler accounts of it, or where that cannot be read, by
 * wakeups, which are told of as often as switches are.
 */
enum teller { ACCOUNTS, WAKEUPS };

/* How long a thread has been in queues so far, at the switch that ends its waiting, or the one that begins it. */
static __always_inline __u64 queued_so_far(struct task_struct *task)
{
	__u64 since = FIELD(task, sched_info.last_queued);

	return FIELD(task, sched_info.run_delay) + (since ? scheduler_clock(task) - since : 0);
}

static __always_inline __u64 queued_in(const struct wait *wait, struct task_struct *task, __u64 until,
				       enum teller teller)
{
	if (teller == ACCOUNTS)
		return queued_so_far(task) - wait->queued_ns;
	return wait->runnable_ns ? until - wait->runnable_ns : 0;
}

/* How many turns on a CPU a thread has had. */
static __always_inline __u64 turns_of(struct task_struct *task, enum teller teller)
{
	if (teller == ACCOUNTS)
		return FIELD(task, sched_info.pcount);
	return FIELD(task, nvcsw) + FIELD(task, nivcsw);
}

/* Whether a thread has had no turns but these since it left. Nobody saw it come and go while no program was attached,
 * and what it waits for now is something else.
 */
static __always_inline bool still_holds(struct wait *wait, struct task_struct *task, __u64 turns, enum teller teller)
{
	if (turns_of(task, teller) == wait->turns + turns)
		return true;
	waits_no_more(task, wait);
	return false;
}

static __always_inline void arrive(struct task_struct *task, __u64 *now, enum teller teller)
{
	struct wait *wait = wait_of(task);

	if (!wait || !still_holds(wait, task, 0, teller))
		return;
	once(now);
	end_wait(wait, task, true, queued_in(wait, task, *now, teller), *now);
}

/* Some virtual machines hide threads of their own: the kernel tells neither perf, ftrace nor BPF of the switch from
 * such a thread to another. The other one shows when it leaves the CPU again, as one that had never come back; it came
 * as long ago as the scheduler says that it has run.
 */
static __always_inline void arrived_unseen(struct task_struct *task, struct wait *wait, __u64 now,
					   enum teller teller)
{
	__u64 ready = wait->off_ns, ran, came;

	if (teller == ACCOUNTS) {
		ran = scheduler_clock(task) - FIELD(task, sched_info.last_arrival);
	} else {
		ran = FIELD(task, se.sum_exec_runtime) - FIELD(task, se.prev_sum_exec_runtime);
		if (wait->runnable_ns)
			ready = wait->runnable_ns;
	}
	came = ran < now - ready ? now - ran : ready;
	end_wait(wait, task, false, queued_in(wait, task, came, teller), came);
}

static __always_inline void leave(void *ctx, struct task_struct *task, bool preempted, __u64 *now,
				  enum teller teller)
{
	struct wait *wait = wait_of(task);
	struct origin origin;
	__u32 known;

	if (wait && still_holds(wait, task, 1, teller))
		arrived_unseen(task, wait, once(now), teller);
	/* The kernel's own threads, and those that have ended. */
	if (!FIELD(task, mm)) {
		/* The next thread of its number shall not find its wait. */
		if (!STORAGE_GOES_WITH_OWNER && task_state(task) & STATE_DEAD)
			bpf_task_storage_delete(&waits, task);
		return;
	}
	known = known_of(FIELD(task, tgid));
	if (!may_have_spans(known) || !span_of_task(known, task, &origin))
		return;
	wait = bpf_task_storage_get(&waits, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!wait) {
		count(COUNTER_LOST_STATE);
		return;
	}
	wait->origin = origin;
	wait->turns = turns_of(task, teller);
	waits_from(task, wait, once(now));
	if (teller == ACCOUNTS)
		wait->queued_ns = queued_so_far(task);
	else
		wait->runnable_ns = preempted || task_state(task) == 0 ? wait->off_ns : 0;
	wait->user_stack[0] = 0;
	if (CONSTANT(config, stacks))
		note_stack(ctx, task, wait->user_stack);
}

/* `previous` still runs here: its memory can be read, the next one's cannot. */
static __always_inline void switched(void *ctx, bool preempted, struct task_struct *previous,
				     struct task_struct *next, enum teller teller)
{
	__u64 now = 0;

	if (FIELD(previous, pid))
		leave(ctx, previous, preempted, &now, teller);
	if (FIELD(next, pid))
		arrive(next, &now, teller);
}

/* One of both is loaded. */
SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempted, struct task_struct *previous, struct task_struct *next)
{
	switched(ctx, preempted, previous, next, ACCOUNTS);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch_of_woken, bool preempted, struct task_struct *previous, struct task_struct *next)
{
	switched(ctx, preempted, previous, next, WAKEUPS);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	struct wait *wait = wait_of(task);

	if (wait && !wait->runnable_ns)
		wait->runnable_ns = bpf_ktime_get_boot_ns();
	return 0;
}

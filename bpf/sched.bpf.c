/* Time a span's threads spend off the CPU, and runnable without one. */
#include "sched.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"
#include "common/sums.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

CONSTANTS(struct sched_config, config);

SUMS_OF(struct span_key, struct sched_sum)

enum { STATE_DEAD = 0x80 }; /* TASK_DEAD */

/* A thread that left the CPU while it worked on a span. */
struct wait {
	__u64 off_ns; /* 0: it is not waiting */
	__u64 runnable_ns; /* 0: still blocked */
	struct origin origin;
	__u64 user_stack[STACK_DEPTH];
};

STORAGE(waits, BPF_MAP_TYPE_TASK_STORAGE, struct wait);

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

static __always_inline void add_to_span(const struct wait *wait, __u64 run_queue, __u64 off_cpu, __u64 now)
{
	struct span_key key = span_key_of(&wait->origin);
	struct sched_sum *sum = sum_of(&key);

	if (!sum)
		return;
	if (!sum->first_ns)
		sum->first_ns = wait->off_ns;
	raise_to(&sum->last_ns, now);
	if (run_queue) {
		__sync_fetch_and_add(&sum->run_queue_ns, run_queue);
		__sync_fetch_and_add(&sum->run_queue_count, 1);
		raise_to(&sum->run_queue_max_ns, run_queue);
	}
	if (off_cpu) {
		__sync_fetch_and_add(&sum->off_cpu_ns, off_cpu);
		__sync_fetch_and_add(&sum->off_cpu_count, 1);
		raise_to(&sum->off_cpu_max_ns, off_cpu);
	}
}

/* `waiting` is the thread while it still waits, so that the kernel's stack is the one it waits in; else NULL. */
static __always_inline void long_wait(const struct wait *wait, struct task_struct *waiting, __u64 run_queue,
				      __u64 off_cpu, __u64 now)
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
	if (waiting && CONSTANT(config, stacks))
		kernel_stack(waiting, record->kernel_stack, sizeof(record->kernel_stack));
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void end_wait(struct wait *wait, struct task_struct *waiting, __u64 now)
{
	__u64 run_queue = wait->runnable_ns ? now - wait->runnable_ns : 0;
	__u64 off_cpu = now - wait->off_ns - run_queue;

	add_to_span(wait, run_queue, off_cpu, now);
	if (run_queue >= CONSTANT(config, run_queue_threshold_ns) ||
	    off_cpu >= CONSTANT(config, off_cpu_threshold_ns))
		long_wait(wait, waiting, run_queue, off_cpu, now);
	wait->off_ns = 0;
}

/* Reading the clock takes as long as all that is done for a thread that nobody follows. */
static __always_inline __u64 once(__u64 *now)
{
	if (!*now)
		*now = bpf_ktime_get_boot_ns();
	return *now;
}

static __always_inline void arrive(struct task_struct *task, __u64 *now)
{
	struct wait *wait = bpf_task_storage_get(&waits, task, NULL, 0);

	if (wait && wait->off_ns)
		end_wait(wait, task, once(now));
}

/* Some virtual machines hide threads of their own: the kernel tells neither perf, ftrace nor BPF of the switch from
 * such a thread to another. The other one shows when it leaves the CPU again, as one that had never come back; it came
 * as long ago as the scheduler says that it has run.
 */
static __always_inline void arrived_unseen(struct task_struct *task, struct wait *wait, __u64 now)
{
	__u64 ran = FIELD(task, se.sum_exec_runtime) - FIELD(task, se.prev_sum_exec_runtime);
	__u64 ready = wait->runnable_ns ? wait->runnable_ns : wait->off_ns;

	end_wait(wait, NULL, ran < now - ready ? now - ran : ready);
}

static __always_inline void leave(void *ctx, struct task_struct *task, bool preempted, __u64 *now)
{
	struct wait *wait = bpf_task_storage_get(&waits, task, NULL, 0);
	const struct thread_layout *layout;
	struct origin origin;

	if (wait && wait->off_ns)
		arrived_unseen(task, wait, once(now));
	/* The kernel's own threads, and those that have ended. */
	if (!FIELD(task, mm)) {
		/* The next thread of its number shall not find its wait. */
		if (!STORAGE_GOES_WITH_OWNER && task_state(task) & STATE_DEAD)
			bpf_task_storage_delete(&waits, task);
		return;
	}
	layout = layout_of(FIELD(task, tgid));
	if (!may_have_spans(layout) || !span_of_task(layout, task, &origin))
		return;
	if (!wait)
		wait = bpf_task_storage_get(&waits, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!wait) {
		count(COUNTER_LOST_STATE);
		return;
	}
	wait->origin = origin;
	wait->off_ns = once(now);
	wait->runnable_ns = preempted || task_state(task) == 0 ? wait->off_ns : 0;
	wait->user_stack[0] = 0;
	if (CONSTANT(config, stacks))
		note_stack(ctx, task, wait->user_stack);
}

/* `previous` still runs here: its memory can be read, the next one's cannot. */
SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempted, struct task_struct *previous, struct task_struct *next)
{
	__u64 now = 0;

	if (FIELD(previous, pid))
		leave(ctx, previous, preempted, &now);
	if (FIELD(next, pid))
		arrive(next, &now);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	struct wait *wait = bpf_task_storage_get(&waits, task, NULL, 0);

	if (wait && wait->off_ns && !wait->runnable_ns)
		wait->runnable_ns = bpf_ktime_get_boot_ns();
	return 0;
}

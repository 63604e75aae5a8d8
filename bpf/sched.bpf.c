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

static __always_inline void leave(void *ctx, struct task_struct *task, bool preempted, __u64 now)
{
	const struct thread_layout *layout = layout_of(FIELD(task, tgid));
	struct origin origin;
	struct wait *wait;

	if (!may_have_spans(layout))
		return;
	/* It never comes back; the next thread of its number shall not find its wait. */
	if (!STORAGE_GOES_WITH_OWNER && task_state(task) & STATE_DEAD) {
		bpf_task_storage_delete(&waits, task);
		return;
	}
	if (!span_of_task(layout, task, &origin))
		return;
	wait = bpf_task_storage_get(&waits, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!wait) {
		count(COUNTER_LOST_STATE);
		return;
	}
	wait->origin = origin;
	wait->runnable_ns = preempted || task_state(task) == 0 ? now : 0;
	wait->off_ns = now;
	wait->user_stack[0] = 0;
	if (CONSTANT(config, stacks)) {
		long size = bpf_get_stack(ctx, wait->user_stack, sizeof(wait->user_stack), BPF_F_USER_STACK);

		__u64 frames = size < 0 ? STACK_DEPTH : size / sizeof(wait->user_stack[0]);

		/* The bound shall be checked where the verifier sees it, not where the compiler knows it. */
		asm volatile("" : "+r"(frames));
		/* Shorter stacks leave the frames of an earlier wait behind them. */
		if (frames < STACK_DEPTH)
			wait->user_stack[frames] = 0;
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

static __always_inline void long_wait(const struct wait *wait, __u64 run_queue, __u64 off_cpu, __u64 now)
{
	struct sched_wait *record = reserve(sizeof(*record), now);

	if (!record)
		return;
	fill(&record->event, EVENT_SCHED_WAIT, &wait->origin, now);
	record->event.duration_ns = run_queue + off_cpu;
	record->run_queue_ns = run_queue;
	record->off_cpu_ns = off_cpu;
	__builtin_memcpy(record->user_stack, wait->user_stack, sizeof(record->user_stack));
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void arrive(struct task_struct *task, __u64 now)
{
	struct wait *wait = bpf_task_storage_get(&waits, task, NULL, 0);
	__u64 run_queue, off_cpu;

	if (!wait || !wait->off_ns)
		return;
	run_queue = wait->runnable_ns ? now - wait->runnable_ns : 0;
	off_cpu = now - wait->off_ns - run_queue;
	add_to_span(wait, run_queue, off_cpu, now);
	if (run_queue >= CONSTANT(config, run_queue_threshold_ns) ||
	    off_cpu >= CONSTANT(config, off_cpu_threshold_ns))
		long_wait(wait, run_queue, off_cpu, now);
	wait->off_ns = 0;
}

/* `previous` still runs here: its memory can be read, the next one's cannot. */
SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempted, struct task_struct *previous, struct task_struct *next)
{
	__u64 now = bpf_ktime_get_boot_ns();

	if (FIELD(previous, pid))
		leave(ctx, previous, preempted, now);
	if (FIELD(next, pid))
		arrive(next, now);
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

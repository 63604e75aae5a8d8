/* Keeps the table of processes true while they fork, exec and exit, and tells user space of new programs. */
#include "process.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline void announce(enum event_kind kind, struct task_struct *task)
{
	struct origin origin = {.tgid = task->tgid, .tid = task->pid};
	__u64 now = bpf_ktime_get_boot_ns();
	struct process_event *record = reserve(sizeof(*record), now);

	if (!record)
		return;
	fill(&record->event, kind, &origin, now);
	BPF_CORE_READ_INTO(&record->comm, task, comm);
	bpf_ringbuf_submit(record, 0);
}

/* A forked child has its parent's mappings, so its threads keep their records at the same place. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	const struct thread_layout *layout;
	struct thread_layout copy;
	__u32 tgid = child->tgid;

	if (tgid == (__u32)parent->tgid)
		return 0;
	layout = layout_of(parent->tgid);
	if (!layout) {
		/* User space may have been late for an earlier process of this number. */
		bpf_map_delete_elem(&processes, &tgid);
		return 0;
	}
	copy = *layout;
	if (bpf_map_update_elem(&processes, &tgid, &copy, BPF_ANY))
		count(COUNTER_LOST_STATE);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task)
{
	__u32 tgid = task->tgid;

	bpf_map_delete_elem(&processes, &tgid);
	announce(EVENT_PROCESS_EXEC, task);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	__u32 tgid = task->tgid;

	if (BPF_CORE_READ(task, signal, live.counter))
		return 0;
	bpf_map_delete_elem(&processes, &tgid);
	announce(EVENT_PROCESS_EXIT, task);
	return 0;
}

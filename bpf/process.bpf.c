/* Keeps the table of processes true while they fork, exec and exit, and tells user space of them. */
#include "process.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* What a process is called in its own pid namespace, which is where it takes its `process.pid` from. */
static __always_inline void name_itself(struct process_event *record, struct task_struct *leader)
{
	struct pid *pid = BPF_CORE_READ(leader, thread_pid);
	unsigned int level = BPF_CORE_READ(pid, level);
	struct upid *own = (struct upid *)((void *)pid + bpf_core_field_offset(struct pid, numbers) +
					   level * bpf_core_type_size(struct upid));

	record->namespace_pid = BPF_CORE_READ(own, nr);
	record->pid_namespace = BPF_CORE_READ(own, ns, ns.inum);
}

static __always_inline void announce(enum event_kind kind, struct task_struct *task, __u32 parent, bool followed)
{
	struct origin origin = {.tgid = FIELD(task, tgid), .tid = FIELD(task, pid)};
	__u64 now = bpf_ktime_get_boot_ns();
	struct process_event *record = reserve(sizeof(*record), now);

	if (!record)
		return;
	fill(&record->event, kind, &origin, now);
	record->parent = parent;
	record->followed = followed;
	record->namespace_pid = 0;
	record->pid_namespace = 0;
	__builtin_memset(record->_pad, 0, sizeof(record->_pad));
	/* A thread that outlived its leader is about to leave: its own numbers are not the process's. */
	if (kind != EVENT_PROCESS_EXIT)
		name_itself(record, task);
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void know(__u32 tgid, __u32 what)
{
	struct process_row *row = row_of(tgid);

	if (row)
		*(volatile __u8 *)&row->known[tgid % PROCESSES_A_ROW] = what;
}

/* A forked child has its parent's mappings, so its threads keep their records at the same place. Where the parent's keep
 * none, the child is unknown from here on: user space may have been late for an earlier process of this number.
 */
static __always_inline bool inherit(__u32 child, __u32 parent)
{
	__u32 known = known_of(parent);

	know(child, publishes(known) ? known : 0);
	return publishes(known);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 tgid = FIELD(child, tgid);

	if (tgid != (__u32)FIELD(parent, tgid))
		announce(EVENT_PROCESS_FORK, child, FIELD(parent, tgid), inherit(tgid, FIELD(parent, tgid)));
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task)
{
	__u32 tgid = FIELD(task, tgid);

	know(tgid, 0);
	announce(EVENT_PROCESS_EXEC, task, 0, false);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	__u32 tgid = FIELD(task, tgid);

	if (BPF_CORE_READ(task, signal, live.counter))
		return 0;
	know(tgid, 0);
	announce(EVENT_PROCESS_EXIT, task, 0, false);
	return 0;
}

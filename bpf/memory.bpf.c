/* OOM kills, and the time threads spend on reclaiming memory themselves. */
#include "memory.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"
#include "common/sums.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

CONSTANTS(struct memory_config, config);

SUMS_OF(struct span_key, struct memory_sum)

enum { SIGNAL_KILL = 9 };

/* When the reclaim began that a thread is in. */
STORAGE(reclaims, BPF_MAP_TYPE_TASK_STORAGE, __u64);

/* Processes that the OOM killer chose and that have not been told yet. */
MAP(victims, BPF_MAP_TYPE_LRU_HASH, 256, __u32, __u8);

static __always_inline struct memory_event *memory_event(enum event_kind kind, const struct origin *origin,
							 __u64 now)
{
	struct memory_event *record = reserve(sizeof(*record), now);

	if (!record)
		return NULL;
	fill(&record->event, kind, origin, now);
	record->reclaimed_pages = 0;
	record->memcg = 0;
	__builtin_memset(record->comm, 0, sizeof(record->comm) + sizeof(record->_pad));
	return record;
}

static __always_inline void reclaim_began(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 *began;

	if (!may_have_spans(known_of(FIELD(task, tgid))))
		return;
	began = bpf_task_storage_get(&reclaims, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (began)
		*began = bpf_ktime_get_boot_ns();
	else
		count(COUNTER_LOST_STATE);
}

static __always_inline void add_to_span(const struct origin *origin, __u64 began, __u64 pages, __u64 now)
{
	struct span_key key = span_key_of(origin);
	struct memory_sum *sum = sum_of(&key);

	if (!sum)
		return;
	if (!sum->first_ns)
		sum->first_ns = began;
	raise_to(&sum->last_ns, now);
	__sync_fetch_and_add(&sum->reclaim_ns, now - began);
	raise_to(&sum->reclaim_max_ns, now - began);
	__sync_fetch_and_add(&sum->reclaimed_pages, pages);
	__sync_fetch_and_add(&sum->reclaim_count, 1);
}

static __always_inline void reclaim_ended(__u64 pages, bool memcg)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 *storage = bpf_task_storage_get(&reclaims, task, NULL, 0);
	__u64 now = bpf_ktime_get_boot_ns(), began;
	struct memory_event *record;
	struct origin origin;

	if (!storage || !*storage)
		return;
	began = *storage;
	*storage = 0;
	if (current_origin(&origin))
		add_to_span(&origin, began, pages, now);
	if (now - began < CONSTANT(config, reclaim_threshold_ns))
		return;
	record = memory_event(EVENT_RECLAIM, &origin, now);
	if (!record)
		return;
	record->event.duration_ns = now - began;
	record->reclaimed_pages = pages;
	record->memcg = memcg;
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void killed(__u32 tgid, struct task_struct *victim)
{
	struct origin origin = {.tgid = tgid};
	struct memory_event *record;
	__u8 yes = 1;

	bpf_map_update_elem(&victims, &tgid, &yes, BPF_ANY);
	record = memory_event(EVENT_OOM_KILL, &origin, bpf_ktime_get_boot_ns());
	if (!record)
		return;
	if (victim)
		BPF_CORE_READ_INTO(&record->comm, victim, comm);
	bpf_ringbuf_submit(record, 0);
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(mm_vmscan_direct_reclaim_begin)
{
	reclaim_began();
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(mm_vmscan_direct_reclaim_end, unsigned long pages)
{
	reclaim_ended(pages, false);
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(mm_vmscan_memcg_reclaim_begin)
{
	reclaim_began();
	return 0;
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(mm_vmscan_memcg_reclaim_end, unsigned long pages)
{
	reclaim_ended(pages, true);
	return 0;
}

/* One event for the process; those for the spans it was at follow when its threads get the signal. */
SEC("tp_btf/mark_victim")
int BPF_PROG(mark_victim, unsigned long victim)
{
	struct task_struct *task = (void *)victim;

	if (victim_is_task())
		killed(FIELD(task, tgid), task);
	else
		killed(victim, NULL);
	return 0;
}

/* Each thread of the victim comes by here on its way out, with its memory still in place. */
SEC("tp_btf/signal_deliver")
int BPF_PROG(signal_deliver, int signal)
{
	struct memory_event *record;
	struct origin origin;
	__u32 tgid;

	if (signal != SIGNAL_KILL)
		return 0;
	tgid = bpf_get_current_pid_tgid() >> 32;
	if (!bpf_map_lookup_elem(&victims, &tgid) || !current_origin(&origin))
		return 0;
	record = memory_event(EVENT_OOM_KILL, &origin, bpf_ktime_get_boot_ns());
	if (!record)
		return 0;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	bpf_ringbuf_submit(record, 0);
	return 0;
}

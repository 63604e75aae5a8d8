/* Allocations, frees, copies and launch gaps of CUDA, by uprobes on its driver and its runtime.
 *
 * The runtime calls the driver: of nested calls the outermost counts, whichever library it is in. What a
 * function is told differs only in where the size is, so a program is for all functions of one shape.
 */
#include "cuda.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"
#include "common/sums.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

CONSTANTS(struct cuda_config, config);

SUMS_OF(struct span_key, struct cuda_sum)

struct call {
	__u64 began_ns;
	__u64 size;
	__u64 depth;
	__u64 stack; /* stack pointer of the outermost call */
	struct origin origin;
	__u8 operation;
	__u8 _pad[7];
};

/* The call that a thread is in. */
MAP(calls, BPF_MAP_TYPE_LRU_HASH, 16384, __u64, struct call);

struct launch {
	__u64 time_ns;
	__u64 trace_id[2];
	__u64 span_id;
};

/* The last launch of each thread. */
MAP(launches, BPF_MAP_TYPE_LRU_HASH, 16384, __u64, struct launch);

static __always_inline void begin(struct pt_regs *registers, enum cuda_operation operation, __u64 size)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct call *outer = bpf_map_lookup_elem(&calls, &thread);
	struct call call = {.size = size, .depth = 1, .operation = operation};

	call.stack = PT_REGS_SP(registers);
	/* Deeper in the stack than the call before: inside it. Otherwise that one never returned. */
	if (outer && call.stack < outer->stack) {
		outer->depth++;
		return;
	}
	current_origin(&call.origin);
	call.began_ns = bpf_ktime_get_boot_ns();
	if (bpf_map_update_elem(&calls, &thread, &call, BPF_ANY))
		count(COUNTER_LOST_STATE);
}

static __always_inline void emit(enum event_kind kind, const struct call *call, int error, __u64 now)
{
	struct cuda_event *record = reserve(sizeof(*record), now);

	if (!record)
		return;
	fill(&record->event, kind, &call->origin, now);
	record->event.error = error;
	record->event.duration_ns = now - call->began_ns;
	record->size = call->size;
	record->operation = call->operation;
	__builtin_memset(record->_pad, 0, sizeof(record->_pad));
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void add_to_sum(const struct call *call, int error, __u64 now)
{
	struct span_key key = span_key_of(&call->origin);
	struct cuda_sum *sum = sum_of(&key);
	__u64 took = now - call->began_ns;

	if (!sum)
		return;
	if (!sum->first_ns)
		sum->first_ns = call->began_ns;
	raise_to(&sum->last_ns, now);
	if (error)
		__sync_fetch_and_add(&sum->failures, 1);
	switch (call->operation) {
	case CUDA_FREE:
		__sync_fetch_and_add(&sum->frees, 1);
		break;
	case CUDA_COPY:
		__sync_fetch_and_add(&sum->copies, 1);
		__sync_fetch_and_add(&sum->copy_ns, took);
		if (!error)
			__sync_fetch_and_add(&sum->copy_bytes, call->size);
		break;
	default:
		__sync_fetch_and_add(&sum->allocs, 1);
		__sync_fetch_and_add(&sum->alloc_ns, took);
		raise_to(&sum->alloc_max_ns, took);
		if (!error)
			__sync_fetch_and_add(&sum->alloc_bytes, call->size);
	}
}

static __always_inline void end(int result)
{
	__u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns(), took;
	struct call *found = bpf_map_lookup_elem(&calls, &thread), call;

	if (!found)
		return;
	if (--found->depth)
		return;
	call = *found;
	bpf_map_delete_elem(&calls, &thread);
	took = now - call.began_ns;
	add_to_sum(&call, result, now);
	if (call.operation == CUDA_COPY) {
		if (result || took >= CONSTANT(config, copy_threshold_ns))
			emit(EVENT_CUDA_COPY, &call, result, now);
	} else if (result || (call.operation != CUDA_FREE && took >= CONSTANT(config, alloc_threshold_ns))) {
		emit(EVENT_CUDA_ALLOC, &call, result, now);
	}
}

/* A gap is one between two launches for the same span: what lies between two requests is no gap of either. */
static __always_inline void launched(void)
{
	__u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_boot_ns();
	struct launch *last = bpf_map_lookup_elem(&launches, &thread), launch = {.time_ns = now};
	struct call call = {.operation = CUDA_LAUNCH};

	current_origin(&call.origin);
	launch.trace_id[0] = call.origin.trace_id[0];
	launch.trace_id[1] = call.origin.trace_id[1];
	launch.span_id = call.origin.span_id;
	if (!last) {
		if (bpf_map_update_elem(&launches, &thread, &launch, BPF_ANY))
			count(COUNTER_LOST_STATE);
		return;
	}
	call.began_ns = last->time_ns;
	if (now - last->time_ns > CONSTANT(config, launch_gap_ns) && last->span_id == launch.span_id &&
	    last->trace_id[0] == launch.trace_id[0] && last->trace_id[1] == launch.trace_id[1])
		emit(EVENT_CUDA_LAUNCH_GAP, &call, 0, now);
	*last = launch;
}

SEC("uprobe")
int BPF_KPROBE(cuda_device, __u64 address, __u64 size)
{
	begin(ctx, CUDA_DEVICE, size);
	return 0;
}

/* The runtime has no element size, so both have width and height as third and fourth. */
SEC("uprobe")
int BPF_KPROBE(cuda_pitch)
{
	begin(ctx, CUDA_DEVICE, PT_REGS_PARM3(ctx) * PT_REGS_PARM4(ctx));
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(cuda_pool, __u64 address, __u64 size)
{
	begin(ctx, CUDA_POOL, size);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(cuda_managed, __u64 address, __u64 size)
{
	begin(ctx, CUDA_MANAGED, size);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(cuda_host, __u64 address, __u64 size)
{
	begin(ctx, CUDA_HOST, size);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(cuda_virtual, __u64 address, __u64 size)
{
	begin(ctx, CUDA_VIRTUAL, size);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(cuda_free)
{
	begin(ctx, CUDA_FREE, 0);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(cuda_copy, __u64 to, __u64 from, __u64 size)
{
	begin(ctx, CUDA_COPY, size);
	return 0;
}

/* From one device to another: destination and its device, source and its device, then the size. */
SEC("uprobe")
int BPF_KPROBE(cuda_copy_peer)
{
	begin(ctx, CUDA_COPY, PT_REGS_PARM5(ctx));
	return 0;
}

/* Destination and its pitch, source and its pitch, then width and height. */
SEC("uprobe")
int BPF_KPROBE(cuda_copy_rectangle)
{
	begin(ctx, CUDA_COPY, PT_REGS_PARM5(ctx) * SIXTH_ARGUMENT(ctx));
	return 0;
}

SEC("uretprobe")
int BPF_KRETPROBE(cuda_return, int result)
{
	end(result);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(cuda_launch)
{
	launched();
	return 0;
}

/* A thread that dies in a call leaves nothing for the next one of the same number. */
SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	__u64 thread = thread_of(task);

	bpf_map_delete_elem(&calls, &thread);
	bpf_map_delete_elem(&launches, &thread);
	return 0;
}

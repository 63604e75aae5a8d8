/* The span that the running thread works on, read from OpenTelemetry's thread context record. */
#ifndef OTEL_BRIDGE_CONTEXT_BPF_H
#define OTEL_BRIDGE_CONTEXT_BPF_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "context.h"
#include "counters.bpf.h"
#include "event.h"

enum { GLIBC_DTV_STRIDE = 16 };

/* Process (tgid) → where its threads keep their record. Written by user space and by the process probe;
 * shared by all objects. A process that is not here costs one look-up.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct thread_layout);
} processes SEC(".maps");

static __always_inline unsigned long thread_pointer(struct task_struct *task)
{
#if defined(__TARGET_ARCH_arm64)
	return BPF_CORE_READ(task, thread.tp_value);
#else
	return task->thread.fsbase;
#endif
}

/* The address of the thread's TLS variable, or 0 when the thread has none yet. */
static __always_inline unsigned long tls_variable(const struct thread_layout *layout, unsigned long pointer)
{
	unsigned long dtv = 0, entries = 0, block = 0;

	if (!layout->module)
		return pointer + layout->offset;
	if (bpf_probe_read_user(&dtv, sizeof(dtv), (void *)(pointer + layout->dtv_pointer)))
		return 0;
	/* A thread's DTV may be too short for a module that was loaded later. glibc counts its entries in the
	 * one before the first, musl in entry 0.
	 */
	if (bpf_probe_read_user(&entries, sizeof(entries),
				(void *)(layout->dtv_stride == GLIBC_DTV_STRIDE ? dtv - GLIBC_DTV_STRIDE : dtv)))
		return 0;
	if (layout->module > entries)
		return 0;
	if (bpf_probe_read_user(&block, sizeof(block),
				(void *)(dtv + (unsigned long)layout->module * layout->dtv_stride)))
		return 0;
	/* glibc marks a block that no thread has touched yet with -1. */
	return block == 0 || block == ~0ul ? 0 : block + layout->offset;
}

static __always_inline bool is_zero(const __u64 *trace_id, __u64 span_id)
{
	return (trace_id[0] | trace_id[1]) == 0 || span_id == 0;
}

/* Fills `origin` with the running thread and the span it works on; must be called in process context.
 *
 * True when there is a span. A record that is not valid, cannot be read or carries zero ids is no span;
 * the last two are counted.
 */
static __always_inline bool span_of_thread(const struct thread_layout *layout, struct task_struct *task,
					   struct origin *origin)
{
	struct thread_record record = {};
	unsigned long variable, address = 0;

	variable = tls_variable(layout, thread_pointer(task));
	if (!variable)
		return false;
	if (bpf_probe_read_user(&address, sizeof(address), (void *)variable)) {
		count(COUNTER_UNREADABLE);
		return false;
	}
	if (!address)
		return false;
	if (bpf_probe_read_user(&record, THREAD_RECORD_SIZE, (void *)address)) {
		count(COUNTER_UNREADABLE);
		return false;
	}
	if (record.valid != 1)
		return false;
	if (is_zero(record.trace_id, record.span_id)) {
		count(COUNTER_ZERO_IDS);
		return false;
	}
	origin->trace_id[0] = record.trace_id[0];
	origin->trace_id[1] = record.trace_id[1];
	origin->span_id = record.span_id;
	origin->trace_flags = record.trace_flags;
	origin->match = MATCH_THREAD;
	return true;
}

static __always_inline const struct thread_layout *layout_of(__u32 tgid)
{
	return bpf_map_lookup_elem(&processes, &tgid);
}

static __always_inline bool current_origin(struct origin *origin)
{
	struct task_struct *task = bpf_get_current_task_btf();
	const struct thread_layout *layout;

	*origin = (struct origin){.tgid = task->tgid, .tid = task->pid};
	layout = layout_of(origin->tgid);
	return layout && span_of_thread(layout, task, origin);
}

#endif

/* The span that a thread works on: read from OpenTelemetry's thread context record; or, where a process publishes
 * none, from the request that the thread has read, or from what OBI says about it.
 */
#ifndef OTEL_BRIDGE_CONTEXT_BPF_H
#define OTEL_BRIDGE_CONTEXT_BPF_H

#include "backend.bpf.h"

#include "context.h"
#include "counters.bpf.h"
#include "event.h"

enum { GLIBC_DTV_STRIDE = 16 };

/* Process (tgid) → enum known, a byte for each there can be: it is asked at every switch, send and receive, of
 * processes that nobody follows as well, and an array is looked up without a call. Written by user space and by the
 * programs; shared by all objects.
 */
MAPPED_ARRAY(processes, PROCESSES / PROCESSES_A_ROW, struct process_row);

/* Where the threads of a process keep their record. Written by user space, before a process has the number; shared by
 * all objects.
 */
MAP(layouts, BPF_MAP_TYPE_ARRAY, LAYOUTS, __u32, struct thread_layout);

/* Thread (pid_tgid) → the request it is at; shared by all objects. */
MAP(thread_requests, BPF_MAP_TYPE_LRU_HASH, 16384, __u64, struct thread_request);

/* OBI's own table takes the place of this one where it is configured. */
MAP(shared_contexts, BPF_MAP_TYPE_LRU_HASH, 1, __u64, struct shared_context);

CONSTANTS(struct context_sources, sources);

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

/* The running thread's record as it is now, put behind the variable if it does not lie there already; false when it has
 * none, or none that can be read.
 */
static __always_inline bool read_record(const struct thread_layout *layout, unsigned long address,
					struct thread_variable *variable)
{
	__u32 size = layout->counts_changes ? sizeof(variable->behind) : THREAD_RECORD_SIZE;

	/* Behind the variable there may be nothing. */
	if (bpf_probe_read_user(variable, sizeof(*variable), (void *)address) &&
	    bpf_probe_read_user(&variable->record, sizeof(variable->record), (void *)address)) {
		count(COUNTER_UNREADABLE);
		return false;
	}
	if (!variable->record)
		return false;
	if (variable->record != address + offsetof(struct thread_variable, behind) &&
	    bpf_probe_read_user(&variable->behind, size, (void *)variable->record)) {
		count(COUNTER_UNREADABLE);
		return false;
	}
	return true;
}

/* The span in the running thread's record. A record that is half written, cannot be read or carries zero ids is no
 * span and is counted; one that is not valid is no span. By the OTEP alone the first looks like the last.
 */
static __always_inline bool span_of_record(const struct thread_layout *layout, struct task_struct *task,
					   struct origin *origin)
{
	unsigned long address = tls_variable(layout, thread_pointer(task));
	struct thread_variable variable;
	const struct thread_record *record = &variable.behind;

	if (!address || !read_record(layout, address, &variable))
		return false;
	if (record->valid != 1) {
		if (layout->counts_changes && record->changes & 1)
			count(COUNTER_TORN);
		return false;
	}
	if (is_zero(record->trace_id, record->span_id)) {
		count(COUNTER_ZERO_IDS);
		return false;
	}
	origin->trace_id[0] = record->trace_id[0];
	origin->trace_id[1] = record->trace_id[1];
	origin->span_id = record->span_id;
	origin->trace_flags = record->trace_flags;
	origin->match = MATCH_THREAD;
	return true;
}

static __always_inline __u64 thread_of(const struct task_struct *task)
{
	return (__u64)FIELD(task, tgid) << 32 | (__u32)FIELD(task, pid);
}

/* The span whose `traceparent` the thread has read. Another thread may end the request meanwhile: it takes the
 * socket away first, so that ids seen half cleared are not used.
 */
static __always_inline bool span_of_request(__u64 thread, struct origin *origin)
{
	struct thread_request *request = bpf_map_lookup_elem(&thread_requests, &thread);
	struct origin found;

	if (!request || request->origin.match != MATCH_HEADER)
		return false;
	found = request->origin;
	asm volatile("" ::: "memory");
	if (!*(volatile __u64 *)&request->socket)
		return false;
	*origin = found;
	return true;
}

static __always_inline bool span_of_shared_context(__u64 thread, struct origin *origin)
{
	const struct shared_context *found = bpf_map_lookup_elem(&shared_contexts, &thread);
	struct shared_context context;

	if (!found)
		return false;
	context = *found;
	if (is_zero(context.trace_id, context.span_id)) {
		count(COUNTER_ZERO_IDS);
		return false;
	}
	origin->trace_id[0] = context.trace_id[0];
	origin->trace_id[1] = context.trace_id[1];
	origin->span_id = context.span_id;
	origin->trace_flags = 0;
	origin->match = MATCH_THREAD;
	return true;
}

static __always_inline struct process_row *row_of(__u32 tgid)
{
	__u32 row = tgid / PROCESSES_A_ROW;

	return bpf_map_lookup_elem(&processes, &row);
}

/* What is known of a process (enum known); 0: nothing. */
static __always_inline __u32 known_of(__u32 tgid)
{
	const struct process_row *row = row_of(tgid);

	return row ? *(const volatile __u8 *)&row->known[tgid % PROCESSES_A_ROW] : 0;
}

static __always_inline bool publishes(__u32 known)
{
	return known >= FIRST_LAYOUT;
}

/* Whether there may be spans at all: cheap, to be asked first. */
static __always_inline bool may_have_spans(__u32 known)
{
	return known || CONSTANT(sources, shared_table);
}

/* Fills `origin` with a thread and the span it works on; true when there is one.
 *
 * Must be called while the task runs: its memory is read. What a process publishes itself goes before what
 * others say about it, also when it says that there is no span.
 */
static __always_inline bool span_of_task(__u32 known, struct task_struct *task, struct origin *origin)
{
	const struct thread_layout *layout;

	*origin = (struct origin){.tgid = FIELD(task, tgid), .tid = FIELD(task, pid)};
	if (publishes(known)) {
		layout = bpf_map_lookup_elem(&layouts, &known);
		return layout && span_of_record(layout, task, origin);
	}
	if ((known & SILENT_REQUESTS) && span_of_request(thread_of(task), origin))
		return true;
	return CONSTANT(sources, shared_table) && span_of_shared_context(thread_of(task), origin);
}

static __always_inline bool current_origin(struct origin *origin)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return span_of_task(known_of(FIELD(task, tgid)), task, origin);
}

#endif

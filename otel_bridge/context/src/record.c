#include "record.h"

#include <string.h>

static _Thread_local struct thread_state state;

__attribute__((visibility("default"), used)) _Thread_local struct record *otel_thread_ctx_v1;

__attribute__((noinline)) struct thread_state *thread_state(void)
{
	struct record *record = otel_thread_ctx_v1;

	if (!record)
		otel_thread_ctx_v1 = record = &state.record;
	return (struct thread_state *)record;
}

/* Two kinds of reader are served. One that interrupts this thread (BPF on it, a signal handler, ptrace) sees
 * the stores in program order, so `valid` alone is enough. One that reads from another processor needs the
 * sequence: it reads it, the record, and the sequence again, and discards what is odd or has changed; for it
 * the stores are ordered by the release fences, which cost nothing on x86-64.
 */
void record_write(struct record *record, const uint8_t ids[IDS_SIZE], uint8_t trace_flags)
{
	uint64_t sequence = record->sequence;
	uint64_t words[IDS_SIZE / 8];

	memcpy(words, ids, IDS_SIZE);
	__atomic_store_n(&record->sequence, sequence + 1, __ATOMIC_RELAXED);
	__atomic_store_n(&record->valid, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	for (size_t i = 0; i < IDS_SIZE / 8; i++)
		__atomic_store_n(&record->ids[i], words[i], __ATOMIC_RELAXED);
	__atomic_store_n(&record->trace_flags, trace_flags, __ATOMIC_RELAXED);
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(&record->valid, 1, __ATOMIC_RELEASE);
	__atomic_store_n(&record->sequence, sequence + 2, __ATOMIC_RELEASE);
}

void record_clear(struct record *record)
{
	__atomic_store_n(&record->valid, 0, __ATOMIC_RELEASE);
}

#include "record.h"

#include <pthread.h>
#include <string.h>

static _Thread_local struct thread_state state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct thread_state *threads;
static pthread_key_t at_exit;

/* With the record behind it, in one cache line: readers in the kernel take both at once, at every switch. */
__attribute__((visibility("default"), used, aligned(64))) _Thread_local struct record *otel_thread_ctx_v1;

/* The thread is on its way out: what it still does is nobody's request, and its memory goes with it. */
static void leave(void *argument)
{
	struct thread_state *thread = argument;

	otel_thread_ctx_v1 = NULL;
	pthread_mutex_lock(&lock);
	if (thread->next)
		thread->next->previous = thread->previous;
	if (thread->previous)
		thread->previous->next = thread->next;
	else
		threads = thread->next;
	pthread_mutex_unlock(&lock);
}

static struct thread_state *join(void)
{
	/* Without a destructor the list would outlive the thread. The record works without the list. */
	if (!pthread_setspecific(at_exit, &state)) {
		pthread_mutex_lock(&lock);
		state.next = threads;
		state.previous = NULL;
		if (threads)
			threads->previous = &state;
		threads = &state;
		pthread_mutex_unlock(&lock);
	}
	otel_thread_ctx_v1 = &state.record;
	return &state;
}

__attribute__((noinline)) struct thread_state *thread_state(void)
{
	struct record *record = otel_thread_ctx_v1;

	return record ? (struct thread_state *)record : join();
}

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* Of all threads only the one that forked is left. */
static void after_fork_in_child(void)
{
	threads = otel_thread_ctx_v1 ? &state : NULL;
	state.next = state.previous = NULL;
	pthread_mutex_unlock(&lock);
}

int records_prepare(void)
{
	int error = pthread_key_create(&at_exit, leave);

	return error ? error : pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

void records_clear(void)
{
	pthread_mutex_lock(&lock);
	for (struct thread_state *thread = threads; thread; thread = thread->next)
		record_clear(&thread->record);
	pthread_mutex_unlock(&lock);
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

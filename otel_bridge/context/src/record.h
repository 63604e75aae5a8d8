/* The record of a thread's active span, as OTEP 4947 lays it out, and the symbol that readers look for. */
#ifndef OTEL_CONTEXT_RECORD_H
#define OTEL_CONTEXT_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_ID_SIZE 16
#define SPAN_ID_SIZE 8
#define IDS_SIZE (TRACE_ID_SIZE + SPAN_ID_SIZE)

struct record {
	uint64_t ids[IDS_SIZE / 8]; /* bytes: trace id, span id */
	uint8_t valid; /* 1: the rest is whole and current */
	uint8_t trace_flags;
	uint16_t attributes_size; /* always 0 here */
	uint32_t pad; /* the attributes would begin here */
	uint64_t sequence; /* ours, not the OTEP's: odd while the record is being written */
};

_Static_assert(offsetof(struct record, valid) == 24, "OTEP 4947");
_Static_assert(offsetof(struct record, trace_flags) == 25, "OTEP 4947");
_Static_assert(offsetof(struct record, attributes_size) == 26, "OTEP 4947");
_Static_assert(offsetof(struct record, sequence) == 32, "SEQUENCE_OFFSET in process.py");

/* Contexts that may be entered inside one another on one thread and still be followed. */
#define ENTERED_MAX 8

/* All that this thread needs; lives and dies with it, so that no reader can find it after the thread.
 * The record comes first: the exported pointer points to both.
 */
struct thread_state {
	struct record record;
	uint32_t generation; /* of follow.c; what is noted below belongs to it */
	uint16_t entered_count;
	uint8_t greenlets_followed;
	uintptr_t entered[ENTERED_MAX];
	struct thread_state *next, *previous; /* of all threads that have a record */
};

/* Never inlined: a TLS descriptor call of glibc before 2.39 may clobber vector registers that the compiler
 * believes kept (glibc bug 31372). Behind a normal call nothing is alive in them.
 */
struct thread_state *thread_state(void);

/* Write and withdraw, in an order that a reader which interrupts this thread cannot take for a whole record
 * when it is none.
 */
void record_write(struct record *record, const uint8_t ids[IDS_SIZE], uint8_t trace_flags);
void record_clear(struct record *record);

/* Withdraw every thread's record. Whoever calls it keeps other threads from writing theirs (by the GIL). */
void records_clear(void);

/* Must run once before the first thread_state(). 0, or an errno. */
int records_prepare(void);

#endif

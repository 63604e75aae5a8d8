/* Where the span of a thread is found: what user space writes for each traced process.
 * Mirrored by otel_bridge/kernel/records.py.
 */
#ifndef OTEL_BRIDGE_CONTEXT_H
#define OTEL_BRIDGE_CONTEXT_H

#include <linux/types.h>
#include <stddef.h>

/* The way from the thread pointer to the TLS variable `otel_thread_ctx_v1`, which points to the record.
 *
 * module == 0: the variable lies at thread pointer + offset (initial-exec, local-exec).
 * module > 0:  the thread pointer + dtv_pointer holds the DTV's address; entry `module` of it, dtv_stride
 *              bytes each, holds the address of the module's block; the variable lies at block + offset.
 */
struct thread_layout {
	__s64 offset;
	__u32 module;
	__s32 dtv_pointer; /* 8 on x86-64; on AArch64 0 with glibc, -8 with musl */
	__u32 dtv_stride; /* 16 with glibc, 8 with musl */
	__u32 counts_changes; /* 1: behind a record stands how often it was changed (otel_bridge.context) */
};

_Static_assert(sizeof(struct thread_layout) == 24, "mirrored in records.py");

/* What is known of a process. Of one that publishes its spans, the number of its threads' layout. Of another, what the
 * programs have seen it do.
 */
enum known {
	SILENT_REQUESTS = 1, /* it was seen to read an HTTP request */
	SILENT_TLS = 2, /* it uses libssl */
	FIRST_LAYOUT = 4,
	LAYOUTS = 256,
};

enum {
	PROCESSES = 1 << 22, /* no process has a higher number (PID_MAX_LIMIT) */
	PROCESSES_A_ROW = 64,
};

/* Of so many processes, by the last digits of their number: a byte each, which is read and written in one piece. */
struct process_row {
	union {
		__u8 known[PROCESSES_A_ROW];
		__u64 together[PROCESSES_A_ROW / sizeof(__u64)];
	};
};

_Static_assert(sizeof(struct process_row) == PROCESSES_A_ROW, "no padding");
_Static_assert(PROCESSES == 1 << 22, "mirrored in records.py");

/* Where spans are looked for besides the threads' records; the same for all objects. */
struct context_sources {
	__u32 shared_table; /* the table in which OBI keeps the span of each thread */
	__u32 _pad;
};

_Static_assert(sizeof(struct context_sources) == 8, "mirrored in records.py");

/* OpenTelemetry's thread context record, without its attributes (OTEP 4947). */
struct thread_record {
	__u64 trace_id[2];
	__u64 span_id;
	__u8 valid;
	__u8 trace_flags;
	__u16 attributes_size;
	__u32 _pad; /* in the record the attributes begin here */
	__u64 changes; /* where they are counted: odd while the record is written; not the OTEP's */
};

#define THREAD_RECORD_SIZE offsetof(struct thread_record, _pad)

_Static_assert(offsetof(struct thread_record, valid) == 24, "OTEP 4947");
_Static_assert(THREAD_RECORD_SIZE == 28, "OTEP 4947");
_Static_assert(offsetof(struct thread_record, changes) == 32, "otel_bridge/context/src/record.h");

/* The TLS variable and what stands behind it. There otel_bridge.context has the record, which is then read along with
 * its address: user memory is what takes a look-up longest.
 */
struct thread_variable {
	__u64 record; /* its address */
	__u64 _pad;
	struct thread_record behind;
};

/* Who was at work: kept on sockets, requests and waiting threads until an event needs it. */
struct origin {
	__u64 trace_id[2];
	__u64 span_id;
	__u32 tgid;
	__u32 tid;
	__u8 match; /* enum match; MATCH_NONE: the ids are zero */
	__u8 trace_flags;
	__u16 _pad[3];
};

_Static_assert(sizeof(struct origin) == 40, "no hidden padding");

/* A thread that read an HTTP request whose answer has not begun. */
struct thread_request {
	struct origin origin; /* MATCH_HEADER; MATCH_NONE: the request names no span, or the thread is not trusted */
	__u64 socket; /* cookie of the one it was read from; 0: it is at none */
	__u64 received; /* cookie of the socket that it received from last; of threads that use libssl */
	__u64 distrust; /* requests it must serve one after another before its span is believed again */
};

/* What OBI says that a thread is at: the value of its `traces_ctx_v1` (OTEP 4855), keyed by pid_tgid. */
struct shared_context {
	__u64 trace_id[2];
	__u64 span_id;
};

_Static_assert(sizeof(struct shared_context) == 24, "OTEP 4855");

#endif

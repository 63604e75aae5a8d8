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
	__u32 _pad;
};

_Static_assert(sizeof(struct thread_layout) == 24, "mirrored in records.py");

/* OpenTelemetry's thread context record, without its attributes (OTEP 4947). */
struct thread_record {
	__u64 trace_id[2];
	__u64 span_id;
	__u8 valid;
	__u8 trace_flags;
	__u16 attributes_size;
	__u32 _pad; /* of what we read; in the record the attributes begin here */
};

#define THREAD_RECORD_SIZE offsetof(struct thread_record, _pad)

_Static_assert(offsetof(struct thread_record, valid) == 24, "OTEP 4947");
_Static_assert(THREAD_RECORD_SIZE == 28, "OTEP 4947");

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

#endif

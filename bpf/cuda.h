/* What a program asks of CUDA. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_CUDA_H
#define OTEL_BRIDGE_CUDA_H

#include "common/event.h"
#include "common/sums.h"

enum cuda_operation {
	CUDA_DEVICE = 0, /* cuMemAlloc, cudaMalloc, and with a pitch */
	CUDA_POOL = 1, /* in the order of a stream, from a pool */
	CUDA_MANAGED = 2,
	CUDA_HOST = 3, /* page-locked memory of the host */
	CUDA_VIRTUAL = 4, /* cuMemCreate: memory without an address yet */
	CUDA_FREE = 5,
	CUDA_COPY = 6,
	CUDA_LAUNCH = 7,
};

/* The result that both APIs give for no memory: CUDA_ERROR_OUT_OF_MEMORY, cudaErrorMemoryAllocation. */
#define CUDA_OUT_OF_MEMORY 2

/* One call that failed or was slow; or a launch that came late after the one before. */
struct cuda_event {
	struct kernel_event event; /* error: CUresult or cudaError_t; duration: of the call, or of the gap */
	__u64 size; /* bytes asked for or copied; 0: of a launch */
	__u8 operation; /* enum cuda_operation */
	__u8 _pad[7];
};

_Static_assert(sizeof(struct cuda_event) == 72, "mirrored in records.py");

/* All calls of a span, or of a process outside any span, since the last time the sums were taken. */
struct cuda_sum {
	__u64 first_ns; /* CLOCK_BOOTTIME, when the first began */
	__u64 last_ns; /* when the last ended */
	__u64 alloc_bytes; /* of those that succeeded */
	__u64 alloc_ns;
	__u64 alloc_max_ns;
	__u64 copy_bytes;
	__u64 copy_ns;
	__u32 allocs;
	__u32 frees;
	__u32 copies;
	__u32 failures;
};

_Static_assert(sizeof(struct cuda_sum) == 72, "mirrored in records.py");

struct cuda_config {
	__u64 alloc_threshold_ns; /* a call this long is an event; one that fails always is */
	__u64 copy_threshold_ns;
	__u64 launch_gap_ns;
};

#endif

/* Device memory that a DRM driver takes back. Mirrored by otel_bridge/kernel/records.py. */
#ifndef OTEL_BRIDGE_DRM_H
#define OTEL_BRIDGE_DRM_H

#include "common/event.h"
#include "common/sums.h"

/* Buffers that a span's threads had put out of device memory, since the last time the sums were taken. */
struct drm_sum {
	__u64 first_ns; /* CLOCK_BOOTTIME */
	__u64 last_ns;
	__u64 evicted_bytes;
	__u32 evictions;
	__u32 _pad;
};

_Static_assert(sizeof(struct drm_sum) == 32, "mirrored in records.py");

#endif

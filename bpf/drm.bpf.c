/* Buffers that DRM drivers move from device memory to the host's.
 *
 * A driver evicts in the thread that wants the room, so the span that runs there is the one that waits for it.
 * TTM itself has no tracepoints; its drivers have. The programs are raw_tp and not tp_btf, of which the kernel
 * wants the driver's types before it verifies them: these are verified, and can be run by a test, without one.
 */
#include "drm.h"
#include "common/context.bpf.h"
#include "common/sums.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

SUMS_OF(struct span_key, struct drm_sum)

/* include/drm/ttm/ttm_placement.h; what has no place yet has a number that is none of these. */
enum { PLACE_SYSTEM = 0, PLACE_TRANSLATED = 1, PLACE_DEVICE = 2, PLACE_SECOND_DEVICE = 3 };

static __always_inline void moved(bool from_device, __u32 to, __u64 bytes)
{
	struct drm_sum *sum;
	struct span_key key;
	struct origin origin;
	__u64 now;

	if (!from_device || to > PLACE_TRANSLATED)
		return;
	current_origin(&origin);
	key = span_key_of(&origin);
	sum = sum_of(&key);
	if (!sum)
		return;
	now = bpf_ktime_get_boot_ns();
	if (!sum->first_ns)
		sum->first_ns = now;
	raise_to(&sum->last_ns, now);
	__sync_fetch_and_add(&sum->evicted_bytes, bytes);
	__sync_fetch_and_add(&sum->evictions, 1);
}

/* Numbers from 3 on are amdgpu's own: on-chip memories that are no room for buffers. */
SEC("raw_tp/amdgpu_bo_move")
int BPF_PROG(amdgpu_bo_move, struct amdgpu_bo *buffer, __u32 to, __u32 from)
{
	__u64 bytes = 0;

	if (bpf_core_field_exists(buffer->tbo.base.size))
		bytes = BPF_CORE_READ(buffer, tbo.base.size);
	moved(from == PLACE_DEVICE, to, bytes);
	return 0;
}

/* Cards of two tiles have two device memories. Placements are passed since 6.8 (a09946a9a903). */
SEC("raw_tp/xe_bo_move")
int BPF_PROG(xe_bo_move, struct xe_bo *buffer, __u32 to, __u32 from)
{
	__u64 bytes = 0;

	if (bpf_core_field_exists(buffer->ttm.base.size))
		bytes = BPF_CORE_READ(buffer, ttm.base.size);
	moved(from == PLACE_DEVICE || from == PLACE_SECOND_DEVICE, to, bytes);
	return 0;
}

/* Buffers that leave device memory, with their sizes, on the span that wanted the room. */
#include "sums.h"

#include "bpf/drm.bpf.c"
#include "check.h"
#include "thread.h"

enum { TGID = 42, MIB = 1 << 20, NOWHERE = -1 };

static struct amdgpu_bo amd = {.tbo.base.size = 3 * MIB};
static struct xe_bo intel = {.ttm.base.size = 5 * MIB};

static void begin(void)
{
	begin_thread(TGID);
	fake.now = 1000;
	at_work_on(9);
}

static struct drm_sum sum_of_span(__u64 span)
{
	struct span_key key = {.trace_id = {1, 2}, .span_id = span, .tgid = TGID, .match = MATCH_THREAD};
	struct drm_sum *found = bpf_map_lookup_elem(&sums_a, &key);

	return found ? *found : (struct drm_sum){};
}

static void amd_evicts_its_bytes(void)
{
	begin();
	amdgpu_bo_move(NULL, &amd, PLACE_TRANSLATED, PLACE_DEVICE);
	CHECK(sum_of_span(9).evictions == 1 && sum_of_span(9).evicted_bytes == 3 * MIB);
}

static void intel_evicts_its_bytes(void)
{
	begin();
	xe_bo_move(NULL, &intel, PLACE_SYSTEM, PLACE_DEVICE);
	CHECK(sum_of_span(9).evictions == 1 && sum_of_span(9).evicted_bytes == 5 * MIB);
}

static void intel_s_second_tile_is_device_memory(void)
{
	begin();
	xe_bo_move(NULL, &intel, PLACE_SYSTEM, PLACE_SECOND_DEVICE);
	CHECK(sum_of_span(9).evictions == 1);
}

static void amd_s_third_place_is_none(void)
{
	begin();
	amdgpu_bo_move(NULL, &amd, PLACE_SYSTEM, 3);
	CHECK(sum_of_span(9).evictions == 0);
}

static void many_are_added_up_from_the_first_to_the_last(void)
{
	begin();
	for (int i = 0; i < 23; i++) {
		amdgpu_bo_move(NULL, &amd, PLACE_TRANSLATED, PLACE_DEVICE);
		fake.now += 10;
	}
	CHECK(sum_of_span(9).evictions == 23 && sum_of_span(9).evicted_bytes == 23 * 3 * MIB);
	CHECK(sum_of_span(9).first_ns == 1000 && sum_of_span(9).last_ns == 1000 + 22 * 10);
}

static void each_span_has_its_own(void)
{
	begin();
	amdgpu_bo_move(NULL, &amd, PLACE_SYSTEM, PLACE_DEVICE);
	at_work_on(10);
	xe_bo_move(NULL, &intel, PLACE_SYSTEM, PLACE_DEVICE);
	CHECK(sum_of_span(9).evicted_bytes == 3 * MIB && sum_of_span(10).evicted_bytes == 5 * MIB);
}

static void what_is_made_is_no_eviction(void)
{
	begin();
	amdgpu_bo_move(NULL, &amd, PLACE_DEVICE, NOWHERE);
	CHECK(sum_of_span(9).evictions == 0);
}

static void what_is_given_back_is_no_eviction(void)
{
	begin();
	amdgpu_bo_move(NULL, &amd, NOWHERE, PLACE_DEVICE);
	CHECK(sum_of_span(9).evictions == 0);
}

static void what_comes_back_is_no_eviction(void)
{
	begin();
	xe_bo_move(NULL, &intel, PLACE_DEVICE, PLACE_TRANSLATED);
	CHECK(sum_of_span(9).evictions == 0);
}

static void what_is_swapped_out_later_is_no_eviction(void)
{
	begin();
	xe_bo_move(NULL, &intel, PLACE_SYSTEM, PLACE_TRANSLATED);
	CHECK(sum_of_span(9).evictions == 0);
}

static void without_a_span_the_process_is_named(void)
{
	struct span_key key = {.tgid = TGID};
	struct drm_sum *found;

	begin();
	at_work_on(0);
	amdgpu_bo_move(NULL, &amd, PLACE_SYSTEM, PLACE_DEVICE);
	found = bpf_map_lookup_elem(&sums_a, &key);
	CHECK(found && found->evictions == 1);
}

int main(void)
{
	RUN(amd_evicts_its_bytes);
	RUN(intel_evicts_its_bytes);
	RUN(intel_s_second_tile_is_device_memory);
	RUN(amd_s_third_place_is_none);
	RUN(many_are_added_up_from_the_first_to_the_last);
	RUN(each_span_has_its_own);
	RUN(what_is_made_is_no_eviction);
	RUN(what_is_given_back_is_no_eviction);
	RUN(what_comes_back_is_no_eviction);
	RUN(what_is_swapped_out_later_is_no_eviction);
	RUN(without_a_span_the_process_is_named);
	return 0;
}

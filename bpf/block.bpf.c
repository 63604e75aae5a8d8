/* Block I/O: latency from the moment a thread queues a request to its completion, and queue depth. */
#include "block.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"
#include "common/sums.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

CONSTANTS(struct block_config, config);

SUMS_OF(struct block_key, struct block_sum)

struct pending {
	__u64 queued_ns;
	struct origin origin;
	__u32 major;
	__u32 minor;
	__u32 bytes;
	__u32 queue_depth;
	__u8 operation;
	__u8 _pad[7];
};

MAP(requests, BPF_MAP_TYPE_HASH, 16384, __u64, struct pending);

MAP(devices, BPF_MAP_TYPE_HASH, 256, struct device_key, struct block_device_totals);

enum { OPERATION_MASK = 0xff }; /* REQ_OP_MASK; reads are 0, writes 1 */

static __always_inline struct block_device_totals *totals_of(const struct device_key *key)
{
	struct block_device_totals *totals = bpf_map_lookup_elem(&devices, key), empty = {};

	if (totals)
		return totals;
	bpf_map_update_elem(&devices, key, &empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&devices, key);
}

static __always_inline void left_device(const struct pending *pending)
{
	struct device_key device = {.major = pending->major, .minor = pending->minor};
	struct block_device_totals *totals = bpf_map_lookup_elem(&devices, &device);

	if (totals)
		__sync_fetch_and_add(&totals->in_flight, -1);
}

static __always_inline void add_to_span(const struct pending *pending, bool failed, __u64 now)
{
	struct block_key key = {
		.span = span_key_of(&pending->origin),
		.major = pending->major,
		.minor = pending->minor,
	};
	__u64 latency = now - pending->queued_ns;
	struct block_sum *sum = sum_of(&key);

	if (!sum)
		return;
	if (!sum->first_ns)
		sum->first_ns = pending->queued_ns;
	raise_to(&sum->last_ns, now);
	__sync_fetch_and_add(&sum->latency_ns, latency);
	raise_to(&sum->latency_max_ns, latency);
	__sync_fetch_and_add(&sum->bytes, pending->bytes);
	raise_to(&sum->queue_depth_max, pending->queue_depth);
	__sync_fetch_and_add(&sum->count, 1);
	if (failed)
		__sync_fetch_and_add(&sum->errors, 1);
}

static __always_inline void add_to_device(const struct pending *pending, bool failed, __u64 now)
{
	struct device_key device = {.major = pending->major, .minor = pending->minor};
	struct block_device_totals *totals = bpf_map_lookup_elem(&devices, &device);

	if (!totals)
		return;
	__sync_fetch_and_add(&totals->in_flight, -1);
	__sync_fetch_and_add(&totals->requests, 1);
	__sync_fetch_and_add(&totals->latency_ns, now - pending->queued_ns);
	__sync_fetch_and_add(&totals->bytes, pending->bytes);
	if (failed)
		__sync_fetch_and_add(&totals->errors, 1);
}

static __always_inline void add_to_sums(const struct pending *pending, bool failed, __u64 now)
{
	add_to_device(pending, failed, now);
	if (pending->origin.match != MATCH_NONE)
		add_to_span(pending, failed, now);
}

static __always_inline void queued(struct request *request)
{
	struct gendisk *disk = disk_of(request);
	struct pending pending = {.queued_ns = bpf_ktime_get_boot_ns()};
	struct block_device_totals *totals;
	struct pending *missed;
	struct device_key device;
	__u64 key = (__u64)request;
	__u32 operation = FIELD(request, cmd_flags) & OPERATION_MASK;

	if (!disk)
		return;
	/* Some virtual machines hide threads of their own: of an interrupt on top of one, the kernel tells nobody. That a
	 * request has ended shows when its structure serves again; how long it took and whether it failed, nobody knows
	 * by then.
	 */
	missed = bpf_map_lookup_elem(&requests, &key);
	if (missed)
		add_to_sums(missed, false, missed->queued_ns);
	current_origin(&pending.origin);
	pending.major = device.major = BPF_CORE_READ(disk, major);
	pending.minor = device.minor = BPF_CORE_READ(disk, first_minor);
	pending.bytes = FIELD(request, __data_len);
	pending.operation = operation < BLOCK_OTHER ? operation : BLOCK_OTHER;
	totals = totals_of(&device);
	if (totals) {
		pending.queue_depth = __sync_fetch_and_add(&totals->in_flight, 1) + 1;
		raise_to(&totals->in_flight_max, pending.queue_depth);
	}
	if (bpf_map_update_elem(&requests, &key, &pending, BPF_ANY)) {
		count(COUNTER_LOST_STATE);
		left_device(&pending);
	}
}

static __always_inline void slow_io(const struct pending *pending, __s32 error, __u64 now)
{
	struct block_io *record = reserve(sizeof(*record), now);

	if (!record)
		return;
	fill(&record->event, EVENT_BLOCK_IO, &pending->origin, now);
	record->event.duration_ns = now - pending->queued_ns;
	record->event.error = error;
	record->major = pending->major;
	record->minor = pending->minor;
	record->bytes = pending->bytes;
	record->queue_depth = pending->queue_depth;
	record->operation = pending->operation;
	__builtin_memset(record->_pad, 0, sizeof(record->_pad));
	bpf_ringbuf_submit(record, 0);
}

/* `error` is a blk_status_t (0: none): the block layer's own numbers, not errno. */
static __always_inline void done(struct request *request, __s32 error)
{
	__u64 key = (__u64)request, now = bpf_ktime_get_boot_ns();
	struct pending *found = bpf_map_lookup_elem(&requests, &key), pending;

	if (!found)
		return;
	pending = *found;
	bpf_map_delete_elem(&requests, &key);
	add_to_sums(&pending, error != 0, now);
	if (error || now - pending.queued_ns >= CONSTANT(config, latency_threshold_ns))
		slow_io(&pending, error, now);
}

/* Runs in the thread that asks for the I/O. Since 6.5 (5a80bd075f3b). */
SEC("tp_btf/block_io_start")
int BPF_PROG(block_io_start, struct request *request)
{
	queued(request);
	return 0;
}

/* The nearest older kernels have: the driver takes the request, often still in the thread that asks. A driver
 * that is busy gives it back and takes it again.
 */
SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_rq_issue, struct request *request)
{
	__u64 key = (__u64)request;

	if (!bpf_map_lookup_elem(&requests, &key))
		queued(request);
	return 0;
}

/* A request may complete in parts; its end is when the last byte is there. */
SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *request, int error, unsigned int bytes)
{
	__u8 status = error;

	if (status || bytes >= FIELD(request, __data_len))
		done(request, status);
	return 0;
}

/* Functions of programs, by configuration: their arguments, how long they took, and who asked for it. */
#include "user.h"
#include "common/context.bpf.h"
#include "common/emit.bpf.h"
#ifndef OTEL_BRIDGE_BCC
#include <bpf/usdt.bpf.h>
#endif

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* By the number that each attachment carries as its cookie. */
MAP(user_probes, BPF_MAP_TYPE_ARRAY, 256, __u32, struct user_probe);

struct call_key {
	__u64 thread;
	__u64 probe;
};

struct call {
	__u64 began_ns;
	__u64 depth; /* the function may call itself: the outermost call counts */
	__u64 stack; /* stack pointer of the outermost call */
	struct origin origin;
	__u64 fields[USER_FIELDS];
	__u64 arguments[USER_ARGUMENTS];
};

enum { DEEPEST = 64 };

struct frames {
	__u64 address[DEEPEST];
};

/* Nobody looks at it: a stack's length alone is told. */
MAP(stacks, BPF_MAP_TYPE_PERCPU_ARRAY, 1, __u32, struct frames);

MAP(calls, BPF_MAP_TYPE_LRU_HASH, 16384, struct call_key, struct call);

struct hand_over_key {
	__u32 tgid;
	__u32 group;
	__u64 number;
};

MAP(hand_overs, BPF_MAP_TYPE_LRU_HASH, 16384, struct hand_over_key, struct origin);

static __always_inline struct user_probe *configured(__u64 cookie)
{
	__u32 number = cookie;

	return bpf_map_lookup_elem(&user_probes, &number);
}

/* One of `room` values, numbered from 1; 0: none. */
static __always_inline __u64 chosen(const __u64 *values, int room, __u8 number)
{
#pragma unroll
	for (int i = 0; i < room; i++)
		if (number == i + 1)
			return values[i];
	return 0;
}

static __always_inline __u64 field_of(const __u64 *fields, __u8 number)
{
	return chosen(fields, USER_FIELDS, number);
}

static __always_inline __u64 argument_of(const __u64 *arguments, __u8 number)
{
	return chosen(arguments, USER_ARGUMENTS, number);
}

/* `fields` are those before this one. */
static __always_inline __u64 value_of(const struct user_field *field, __u64 raw, const __u64 *fields)
{
	__u8 bits = 64 - 8 * (field->size & 15);

#pragma unroll
	for (int i = 0; i < USER_STEPS; i++) {
		__u64 address = raw + field->offsets[i];

		if (i >= field->steps)
			break;
		if (i + 1 == field->steps)
			address += field_of(fields, field->index) * field->stride;
		raw = 0;
		if (bpf_probe_read_user(&raw, sizeof(raw), (void *)address)) {
			count(COUNTER_UNREADABLE);
			break;
		}
	}
	bits &= 63;
	return field->is_signed ? (__u64)((__s64)(raw << bits) >> bits) : raw << bits >> bits;
}

/* As far as frame pointers lead, and DEEPEST at the most. */
static __always_inline __u64 stack_depth(void *ctx)
{
	__u32 zero = 0;
	struct frames *frames = bpf_map_lookup_elem(&stacks, &zero);
	long size = frames ? bpf_get_stack(ctx, frames, sizeof(*frames), BPF_F_USER_STACK) : 0;

	return size > 0 ? size / sizeof(__u64) : 0;
}

static __always_inline void note_arguments(struct pt_regs *registers, __u64 *arguments)
{
	arguments[0] = PT_REGS_PARM1(registers);
	arguments[1] = PT_REGS_PARM2(registers);
	arguments[2] = PT_REGS_PARM3(registers);
	arguments[3] = PT_REGS_PARM4(registers);
	arguments[4] = PT_REGS_PARM5(registers);
	arguments[5] = SIXTH_ARGUMENT(registers);
}

static __always_inline void take_arguments(const struct user_probe *probe, void *ctx, const __u64 *arguments,
					   __u64 *fields)
{
#pragma unroll
	for (int i = 0; i < USER_FIELDS; i++) {
		const struct user_field *field = &probe->fields[i];

		if (field->argument == USER_STACK_DEPTH)
			fields[i] = stack_depth(ctx);
		else if (field->argument && field->argument != USER_RESULT)
			fields[i] = value_of(field, argument_of(arguments, field->argument), fields);
	}
}

/* What is known when the function returns. */
static __always_inline void take_result(const struct user_probe *probe, struct call *call, __u64 result)
{
#pragma unroll
	for (int i = 0; i < USER_FIELDS; i++) {
		const struct user_field *field = &probe->fields[i];

		if (field->argument == USER_RESULT)
			call->fields[i] = value_of(field, result, call->fields);
		else if (field->falls)
			call->fields[i] -=
				value_of(field, argument_of(call->arguments, field->argument), call->fields);
	}
}

/* The thread's own span, or the one that was handed over under a number it meets; passed on if asked. */
static __always_inline void find_span(const struct user_probe *probe, struct origin *origin,
				      const __u64 *fields)
{
	struct hand_over_key key = {.tgid = origin->tgid, .group = probe->takes_group};
	struct origin *given;

	if (origin->match != MATCH_NONE || !probe->takes)
		return;
	key.number = field_of(fields, probe->takes);
	given = bpf_map_lookup_elem(&hand_overs, &key);
	if (!given)
		return;
	origin->trace_id[0] = given->trace_id[0];
	origin->trace_id[1] = given->trace_id[1];
	origin->span_id = given->span_id;
	origin->trace_flags = given->trace_flags;
	/* Whose ids they are stays as it was. */
	origin->match = given->match == MATCH_HEADER ? MATCH_HEADER : MATCH_HAND_OVER;
}

/* A number that comes again with no span has none: its last task's would be wrong. */
static __always_inline void hand_over(const struct user_probe *probe, const struct origin *origin,
				      const __u64 *fields)
{
	struct hand_over_key key = {.tgid = origin->tgid, .group = probe->gives_group};

	if (!probe->gives)
		return;
	key.number = field_of(fields, probe->gives);
	if (origin->match == MATCH_NONE)
		bpf_map_delete_elem(&hand_overs, &key);
	else if (bpf_map_update_elem(&hand_overs, &key, origin, BPF_ANY))
		count(COUNTER_LOST_STATE);
}

static __always_inline void emit(const struct user_probe *probe, __u64 number, const struct origin *origin,
				 const __u64 *fields, __u64 duration, __u64 now)
{
	struct user_event *record;

	if (probe->silent)
		return;
	record = reserve(sizeof(*record), now);
	if (!record)
		return;
	fill(&record->event, EVENT_USER, origin, now);
	record->event.duration_ns = duration;
	record->probe = number;
	record->_pad = 0;
	__builtin_memcpy(record->fields, fields, sizeof(record->fields));
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void called(const struct user_probe *probe, __u64 number, const __u64 *fields)
{
	struct origin origin;

	current_origin(&origin);
	find_span(probe, &origin, fields);
	hand_over(probe, &origin, fields);
	emit(probe, number, &origin, fields, 0, bpf_ktime_get_boot_ns());
}

SEC("uprobe")
int BPF_KPROBE(user_call)
{
	__u64 number = bpf_get_attach_cookie(ctx), fields[USER_FIELDS] = {}, arguments[USER_ARGUMENTS];
	struct user_probe *probe = configured(number);

	if (!probe)
		return 0;
	note_arguments(ctx, arguments);
	take_arguments(probe, ctx, arguments, fields);
	called(probe, number, fields);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(user_begin)
{
	__u64 number = bpf_get_attach_cookie(ctx);
	struct call_key key = {.thread = bpf_get_current_pid_tgid(), .probe = number};
	struct call *outer = bpf_map_lookup_elem(&calls, &key), call = {.depth = 1};
	struct user_probe *probe = configured(number);

	if (!probe)
		return 0;
	call.stack = PT_REGS_SP(ctx);
	/* Deeper in the stack than the call before: it is inside that one. Otherwise that one never returned,
	 * because of an exception, a jump, or the end of its thread.
	 */
	if (outer && call.stack < outer->stack) {
		outer->depth++;
		return 0;
	}
	note_arguments(ctx, call.arguments);
	take_arguments(probe, ctx, call.arguments, call.fields);
	current_origin(&call.origin);
	find_span(probe, &call.origin, call.fields);
	call.began_ns = bpf_ktime_get_boot_ns();
	if (bpf_map_update_elem(&calls, &key, &call, BPF_ANY))
		count(COUNTER_LOST_STATE);
	return 0;
}

SEC("uretprobe")
int BPF_KPROBE(user_return)
{
	__u64 number = bpf_get_attach_cookie(ctx), now = bpf_ktime_get_boot_ns();
	struct call_key key = {.thread = bpf_get_current_pid_tgid(), .probe = number};
	struct call *found = bpf_map_lookup_elem(&calls, &key), call;
	struct user_probe *probe = configured(number);

	if (!probe || !found)
		return 0;
	if (--found->depth)
		return 0;
	call = *found;
	bpf_map_delete_elem(&calls, &key);
	take_result(probe, &call, PT_REGS_RC(ctx));
	hand_over(probe, &call.origin, call.fields);
	if (now - call.began_ns >= probe->threshold_ns)
		emit(probe, number, &call.origin, call.fields, now - call.began_ns, now);
	return 0;
}

/* Where a static tracepoint's arguments are is told by libbpf alone. */
#ifndef OTEL_BRIDGE_BCC
SEC("usdt")
int user_usdt(struct pt_regs *ctx)
{
	__u64 number = bpf_usdt_cookie(ctx), fields[USER_FIELDS] = {};
	struct user_probe *probe = configured(number);

	if (!probe)
		return 0;
#pragma unroll
	for (int i = 0; i < USER_FIELDS; i++) {
		const struct user_field *field = &probe->fields[i];
		long raw = 0;

		if (field->argument && !bpf_usdt_arg(ctx, field->argument - 1, &raw))
			fields[i] = value_of(field, raw, fields);
	}
	called(probe, number, fields);
	return 0;
}
#endif

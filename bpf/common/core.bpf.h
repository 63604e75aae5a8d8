/* The words that programs share with the BCC back end, as libbpf and CO-RE say them. */
#ifndef OTEL_BRIDGE_CORE_BPF_H
#define OTEL_BRIDGE_CORE_BPF_H

#include <linux/ptrace.h>

#include "kernel.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* Defines a map. */
#define MAP(name, kind, room, key_type, value_type)                                                           \
	struct {                                                                                               \
		__uint(type, kind);                                                                            \
		__uint(max_entries, room);                                                                     \
		__type(key, key_type);                                                                         \
		__type(value, value_type);                                                                     \
	} name SEC(".maps")

/* Defines an array that user space has in its memory. */
#define MAPPED_ARRAY(name, room, value_type)                                                                  \
	struct {                                                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY);                                                              \
		__uint(map_flags, BPF_F_MMAPABLE);                                                             \
		__uint(max_entries, room);                                                                     \
		__type(key, __u32);                                                                            \
		__type(value, value_type);                                                                     \
	} name SEC(".maps")

/* Defines a ring buffer, its size in bytes. */
#define RING(name, size)                                                                                      \
	struct {                                                                                               \
		__uint(type, BPF_MAP_TYPE_RINGBUF);                                                            \
		__uint(max_entries, size);                                                                     \
	} name SEC(".maps")

/* Defines a map of something to keep with each socket, or each thread; it goes with its owner. */
#define STORAGE(name, kind, value_type)                                                                       \
	struct {                                                                                               \
		__uint(type, kind);                                                                            \
		__uint(map_flags, BPF_F_NO_PREALLOC);                                                          \
		__type(key, int);                                                                              \
		__type(value, value_type);                                                                     \
	} name SEC(".maps")

enum { STORAGE_GOES_WITH_OWNER = 1 };

/* Two tables of one kind, and the slot that says which of them is filled. */
#define TURNING_MAPS(slot, first, second, kind, flags, room, key_type, value_type)                            \
	struct slot##_table {                                                                                  \
		__uint(type, kind);                                                                            \
		__uint(map_flags, flags);                                                                      \
		__uint(max_entries, room);                                                                     \
		__type(key, key_type);                                                                         \
		__type(value, value_type);                                                                     \
	} first SEC(".maps"), second SEC(".maps");                                                             \
	struct {                                                                                               \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                                      \
		__uint(max_entries, 1);                                                                        \
		__type(key, __u32);                                                                            \
		__array(values, struct slot##_table);                                                          \
	} slot SEC(".maps") = {.values = {&first}}

/* For a table that was found in a slot. */
#define table_lookup(table, item) bpf_map_lookup_elem(table, item)
#define table_update(table, item, content, flags) bpf_map_update_elem(table, item, content, flags)

/* Defines a place for a program of another object, of the same tracepoint; and calls what is there, as the last thing
 * that a program does. A second program on the tracepoint would be run for everybody.
 */
#define CALLED(name)                                                                                          \
	struct {                                                                                               \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);                                                         \
		__uint(max_entries, 1);                                                                        \
		__type(key, __u32);                                                                            \
		__type(value, __u32);                                                                          \
	} call_##name SEC(".maps")
#define CALL(ctx, name) bpf_tail_call(ctx, &call_##name, 0)

/* Defines one structure of configuration that does not change while the program is loaded, and reads it. */
#define CONSTANTS(type, name) const volatile type name SEC(".rodata." #name)
#define CONSTANT(name, field) (name.field)

/* A field of a structure of the kernel. */
#define FIELD(pointer, field) ((pointer)->field)

static __always_inline unsigned long thread_pointer(struct task_struct *task)
{
#if defined(__TARGET_ARCH_arm64)
	return BPF_CORE_READ(task, thread.uw.tp_value);
#else
	return task->thread.fsbase;
#endif
}

static __always_inline unsigned int task_state(struct task_struct *task)
{
	if (bpf_core_field_exists(task->__state))
		return task->__state;
	return BPF_CORE_READ((struct task_struct___before_5_14 *)task, state);
}

/* Where the running thread was in its program. False before 5.15 (dd6e10fbd9fb). */
static __always_inline bool user_registers(struct task_struct *task, struct user_registers *found)
{
	struct pt_regs___frame *registers;

	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return false;
	registers = (struct pt_regs___frame *)bpf_task_pt_regs(task);
#if defined(__TARGET_ARCH_arm64)
	*found = (struct user_registers){registers->pc, registers->sp, registers->regs[29]};
#else
	*found = (struct user_registers){registers->ip, registers->sp, registers->bp};
#endif
	return true;
}

/* Where in the kernel a thread is that does not run, innermost first. */
static __always_inline void kernel_stack(struct task_struct *task, __u64 *stack, __u32 size)
{
	if (bpf_get_task_stack(task, stack, size, 0) < 0)
		*stack = 0;
}

/* The scheduler's clock, by which it accounts, on the CPU that a thread is on. */
static __always_inline __u64 scheduler_clock(struct task_struct *task)
{
	return task->se.cfs_rq->rq->clock;
}

static __always_inline struct gendisk *disk_of(struct request *request)
{
	struct request___before_5_17 *old = (void *)request;

	if (bpf_core_field_exists(old->rq_disk))
		return BPF_CORE_READ(old, rq_disk);
	return BPF_CORE_READ(request, q, disk);
}

/* Whether oom:mark_victim passes the task, as it does since 6.8 (72ba14deb40a); its pid before. */
static __always_inline bool victim_is_task(void)
{
	struct trace_event_raw_mark_victim *format = NULL;

	return bpf_core_field_exists(format->uid);
}

/* libbpf 1.1 has no name for it. */
#if defined(__TARGET_ARCH_x86)
#define SIXTH_ARGUMENT(registers) ((registers)->r9)
#else
#define SIXTH_ARGUMENT(registers) (((struct user_pt_regs *)(registers))->regs[5])
#endif

#endif

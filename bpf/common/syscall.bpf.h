/* The memory that the running system call reads into or writes from. */
#ifndef OTEL_BRIDGE_SYSCALL_BPF_H
#define OTEL_BRIDGE_SYSCALL_BPF_H

#include "backend.bpf.h"

#if defined(__TARGET_ARCH_arm64)
enum {
	SYSCALL_READ = 63,
	SYSCALL_WRITE = 64,
	SYSCALL_READV = 65,
	SYSCALL_WRITEV = 66,
	SYSCALL_SENDTO = 206,
	SYSCALL_RECVFROM = 207,
	SYSCALL_SENDMSG = 211,
	SYSCALL_RECVMSG = 212,
};
#else
enum {
	SYSCALL_READ = 0,
	SYSCALL_WRITE = 1,
	SYSCALL_READV = 19,
	SYSCALL_WRITEV = 20,
	SYSCALL_SENDTO = 44,
	SYSCALL_RECVFROM = 45,
	SYSCALL_SENDMSG = 46,
	SYSCALL_RECVMSG = 47,
};
#endif

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded"
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* The kernel's struct pt_regs; user space's has other names. */
struct pt_regs___syscall {
#if defined(__TARGET_ARCH_arm64)
	__u64 regs[31];
	int syscallno;
#else
	unsigned long si;
	unsigned long orig_ax;
#endif
};

#pragma clang attribute pop
#pragma clang diagnostic pop

#if defined(__TARGET_ARCH_arm64)
#define syscall_number(registers) ((registers)->syscallno)
#define syscall_second(registers) ((registers)->regs[1])
#else
#define syscall_number(registers) ((registers)->orig_ax)
#define syscall_second(registers) ((registers)->si)
#endif

enum { MESSAGE_VECTOR = 16 }; /* where a struct msghdr has the address of its vector */

struct user_buffer {
	const void *data;
	__u64 size;
};

_Static_assert(sizeof(struct user_buffer) == 16, "laid out as struct iovec");

static __always_inline bool first_of_vector(const void *vector, struct user_buffer *buffer)
{
	return !bpf_probe_read_user(buffer, sizeof(*buffer), vector);
}

/* All of them have a descriptor first and what tells the memory second. `done` is what the call moved: without a
 * vector, all of it lies in one piece; of a vector, the first piece is looked at.
 *
 * False in any other call, io_uring's among them.
 */
static __always_inline bool buffer_of_syscall(struct task_struct *task, __u32 done, struct user_buffer *buffer)
{
	struct pt_regs___syscall *registers;
	const void *vector;

	/* Since 5.15 (dd6e10fbd9fb) */
	if (!bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_task_pt_regs))
		return false;
	registers = (struct pt_regs___syscall *)bpf_task_pt_regs(task);
	switch (syscall_number(registers)) {
	case SYSCALL_READ:
	case SYSCALL_WRITE:
	case SYSCALL_RECVFROM:
	case SYSCALL_SENDTO:
		*buffer = (struct user_buffer){(void *)syscall_second(registers), done};
		return true;
	case SYSCALL_READV:
	case SYSCALL_WRITEV:
		return first_of_vector((void *)syscall_second(registers), buffer);
	case SYSCALL_RECVMSG:
	case SYSCALL_SENDMSG:
		if (bpf_probe_read_user(&vector, sizeof(vector), (void *)syscall_second(registers) + MESSAGE_VECTOR))
			return false;
		return first_of_vector(vector, buffer);
	}
	return false;
}

#endif

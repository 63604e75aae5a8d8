/* What a program is written in, whichever back end loads it: libbpf (core.bpf.h) or BCC (bcc.bpf.h). */
#ifndef OTEL_BRIDGE_BACKEND_BPF_H
#define OTEL_BRIDGE_BACKEND_BPF_H

#include <linux/types.h>

/* Where a thread was in its program when it entered the kernel. */
struct user_registers {
	__u64 place; /* of the next instruction */
	__u64 stack;
	__u64 frame;
};

#ifdef OTEL_BRIDGE_BCC
#include "bcc.bpf.h"
#else
#include "core.bpf.h"
#endif

#endif

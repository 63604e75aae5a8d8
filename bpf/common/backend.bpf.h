/* What a program is written in, whichever back end loads it: libbpf (core.bpf.h) or BCC (bcc.bpf.h). */
#ifndef OTEL_BRIDGE_BACKEND_BPF_H
#define OTEL_BRIDGE_BACKEND_BPF_H

#ifdef OTEL_BRIDGE_BCC
#include "bcc.bpf.h"
#else
#include "core.bpf.h"
#endif

#endif

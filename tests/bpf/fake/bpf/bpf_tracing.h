/* On the host, a program is a function of its arguments. */
#ifndef FAKE_BPF_TRACING_H
#define FAKE_BPF_TRACING_H

#define BPF_PROG(name, args...) name(void *ctx, ##args)
#define BPF_KPROBE(name, args...) name(void *ctx, ##args)
#define BPF_KRETPROBE(name, args...) name(void *ctx, ##args)

#endif

/* The kernel's types, as far as the probes read them.
 *
 * Only names matter here: every access is relocated to the running kernel's layout (CO-RE), so a field that
 * moved needs no change, and a field that may be absent is asked for with bpf_core_field_exists() before it
 * is read. Kept by hand instead of a generated vmlinux.h, so that the build needs no BTF of its own, the same
 * object comes out on every machine, and the host tests can lay these types out as they please.
 */
#ifndef OTEL_BRIDGE_KERNEL_H
#define OTEL_BRIDGE_KERNEL_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>

#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpadded"
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct thread_struct {
	unsigned long fsbase; /* x86-64 */
	struct {
		unsigned long tp_value;
	} uw; /* arm64 */
};

struct signal_struct {
	struct {
		int counter;
	} live; /* threads that have not exited */
};

struct pid_namespace {
	struct {
		unsigned int inum;
	} ns;
};

struct net {
	struct {
		unsigned int inum;
	} ns;
};

struct nsproxy {
	struct net *net_ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level; /* of the namespace it was made in; 0: the initial one */
	struct upid numbers[1]; /* one for each level */
};

/* What the scheduler accounts of a thread, by its own clock (nanoseconds, of one CPU). */
struct sched_info {
	unsigned long pcount; /* how often it was given a CPU */
	unsigned long long run_delay; /* how long it has waited in a queue so far */
	unsigned long long last_arrival; /* when it was last given a CPU */
	unsigned long long last_queued; /* since when it waits in a queue; 0: it does not */
};

/* A CPU's queue. */
struct rq {
	__u64 clock; /* as of the switch that is under way */
};

struct cfs_rq {
	struct rq *rq; /* with CONFIG_FAIR_GROUP_SCHED */
};

struct sched_entity {
	__u64 sum_exec_runtime; /* ns on a CPU, as of the last tick, switch or wait */
	__u64 prev_sum_exec_runtime; /* the same, when it was last given one */
	struct cfs_rq *cfs_rq; /* where it is, or would be if it were of the fair class */
};

struct task_struct {
	int pid;
	int tgid;
	void *mm; /* of a user's program */
	struct pid *thread_pid; /* since 5.0 (2c4704756cab) */
	unsigned int __state;
	struct signal_struct *signal;
	struct nsproxy *nsproxy;
	struct thread_struct thread;
	struct sched_entity se;
	struct sched_info sched_info; /* with CONFIG_SCHED_INFO */
	unsigned long nvcsw; /* how often it gave up a CPU, as of the switch that is under way */
	unsigned long nivcsw; /* how often one was taken from it */
	char comm[16];
};

/* Before 5.14 (2f064a59a11f) */
struct task_struct___before_5_14 {
	long state;
};

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	int sk_err;
	int sk_rcvbuf;
	unsigned short sk_type;
	unsigned short sk_protocol;
};

struct tcp_sock {
	unsigned int srtt_us; /* smoothed round trip, shifted left by 3 */
	unsigned int total_retrans; /* segments */
	unsigned long long bytes_retrans;
	unsigned int snd_una; /* of the first byte that is not acknowledged */
	unsigned int snd_wnd; /* as the peer told it last */
	unsigned long long delivered_mstamp; /* microseconds of CLOCK_MONOTONIC, when the peer last acknowledged data */
	unsigned int rcv_wnd; /* as the peer was told last */
	unsigned int rcv_nxt; /* of the next byte that is received */
	unsigned int copied_seq; /* of the next byte that a program reads */
	unsigned int snd_nxt; /* of the next byte that is sent for the first time */
	unsigned int write_seq; /* of the next byte that a program hands over */
};

/* What TCP keeps in sk_buff.cb of what it sends. */
struct tcp_skb_cb {
	unsigned int seq;
	unsigned short tcp_gso_segs;
};

struct sk_buff {
	unsigned int len;
	unsigned int truesize;
	unsigned char *data;
	char cb[48];
};

struct gendisk {
	int major;
	int first_minor;
};

struct request_queue {
	struct gendisk *disk;
};

struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
};

/* Before 5.17 (f3fa33acca9f) */
struct request___before_5_17 {
	struct gendisk *rq_disk;
};

/* Since 6.8 (72ba14deb40a) oom:mark_victim passes the task instead of its pid, and tells `uid`. */
struct trace_event_raw_mark_victim {
	unsigned int uid;
};

/* Of the drivers that are built on TTM; all in modules. */
struct drm_gem_object {
	unsigned long size;
};

struct ttm_buffer_object {
	struct drm_gem_object base;
};

struct amdgpu_bo {
	struct ttm_buffer_object tbo;
};

struct xe_bo {
	struct ttm_buffer_object ttm;
};

/* The kernel's struct pt_regs; user space's has other names. */
struct pt_regs___frame {
#if defined(__TARGET_ARCH_arm64)
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
#else
	unsigned long bp;
	unsigned long ip;
	unsigned long sp;
#endif
};

#pragma clang attribute pop
#pragma clang diagnostic pop

#endif

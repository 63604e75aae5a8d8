/* The words that programs share with the libbpf back end, for BCC: kernels without BTF.
 *
 * Instead of CO-RE, the types come from the headers of the running kernel. Without BTF the verifier does not
 * know what a pointer points to, so every access to the kernel's memory is a bpf_probe_read_kernel(), and
 * sockets and threads have no storage of their own: tables stand in that do not notice when an owner ends.
 *
 * Maps are made by user space (otel_bridge/kernel/bcc_object.py). Here a map is a number, which user space gives to
 * its name (-DMAP_NUMBER_<name>=…) and replaces by the map's descriptor when it loads the program.
 */
#ifndef OTEL_BRIDGE_BCC_BPF_H
#define OTEL_BRIDGE_BCC_BPF_H

#include <linux/blk-mq.h>
#include <linux/pid_namespace.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/version.h>
#include <net/tcp.h>

/* BCC puts each program into a section of its own. */
#undef SEC
#define SEC(name)

/* Above what descriptors reach. */
#define MAP_NUMBERS 0x7f000000

enum { PSEUDO_MAP = 1, PSEUDO_MAP_VALUE = 2 }; /* linux/bpf.h: BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE */

/* Never defined: only its type is asked, which carries the number. */
#define MAP(name, kind, room, key_type, value_type)                                                           \
	extern struct {                                                                                        \
		int (*number)[MAP_NUMBERS + MAP_NUMBER_##name];                                                \
		key_type *key;                                                                                 \
		value_type *value;                                                                             \
	} name

#define MAPPED_ARRAY(name, room, value_type) MAP(name, BPF_MAP_TYPE_ARRAY, room, __u32, value_type)
#define RING(name, size) MAP(name, BPF_MAP_TYPE_RINGBUF, size, char, char)
#define STORAGE(name, kind, value_type) MAP(name, kind, 0, __u64, value_type)
#define TURNING_MAPS(slot, first, second, kind, flags, room, key_type, value_type)                            \
	MAP(slot, BPF_MAP_TYPE_ARRAY_OF_MAPS, 1, __u32, __u32)

/* What is called elsewhere needs libbpf. */
#define CALLED(name) struct call_##name
#define CALL(ctx, name) ((void)(ctx))

enum { STORAGE_GOES_WITH_OWNER = 0 };

#define ADDRESS_OF(map) ((void *)bpf_pseudo_fd(PSEUDO_MAP, sizeof(*(map)->number) / sizeof(int)))

/* Before the names of the helpers are taken for maps by number. */
static __always_inline void *table_lookup(void *table, const void *item)
{
	return bpf_map_lookup_elem(table, (void *)item);
}

static __always_inline long table_update(void *table, const void *item, const void *content, __u64 flags)
{
	return bpf_map_update_elem(table, (void *)item, (void *)content, flags);
}

#define bpf_map_lookup_elem(map, item) bpf_map_lookup_elem(ADDRESS_OF(map), (void *)(item))
#define bpf_map_update_elem(map, item, content, flags)                                                        \
	bpf_map_update_elem(ADDRESS_OF(map), (void *)(item), (void *)(content), flags)
#define bpf_map_delete_elem(map, item) bpf_map_delete_elem(ADDRESS_OF(map), (void *)(item))
#define bpf_ringbuf_reserve(map, size, flags) bpf_ringbuf_reserve(ADDRESS_OF(map), size, flags)

#define CONSTANTS(type, name)                                                                                 \
	extern struct {                                                                                        \
		int (*number)[MAP_NUMBERS + MAP_NUMBER_##name];                                                \
		type *value;                                                                                   \
	} name
#define CONSTANT(name, field)                                                                                 \
	(((const volatile typeof(*name.value) *)bpf_pseudo_fd(PSEUDO_MAP_VALUE,                               \
							      sizeof(*name.number) / sizeof(int)))            \
		 ->field)

#define FIELD(pointer, field)                                                                                 \
	({                                                                                                     \
		typeof(({ (pointer)->field; })) read_;                                                         \
		bpf_probe_read_kernel(&read_, sizeof(read_), (void *)&(pointer)->field);                       \
		read_;                                                                                         \
	})

#undef BPF_CORE_READ
#define READ_1(from, a) FIELD(from, a)
#define READ_2(from, a, b) FIELD(FIELD(from, a), b)
#define READ_3(from, a, b, c) FIELD(FIELD(FIELD(from, a), b), c)
#define READ_CHOSEN(a, b, c, n, ...) READ_##n
#define BPF_CORE_READ(from, path...) READ_CHOSEN(path, 3, 2, 1)(from, path)
#define BPF_CORE_READ_INTO(to, from, field) bpf_probe_read_kernel(to, sizeof(*(to)), (void *)&(from)->field)
#define bpf_core_field_offset(type, field) offsetof(type, field)
#define bpf_core_type_size(type) sizeof(type)

/* The kernel tells a cookie of typed pointers alone. */
#define bpf_get_socket_cookie(sk) ((__u64)(sk))

#define bpf_get_current_task_btf() ((struct task_struct *)bpf_get_current_task())

/* A thread is told by its number. A socket by its address, which is soon another one's: that TCP's are new is seen
 * (STORAGE_GOES_WITH_OWNER), others are told by the number of their inode as well.
 */
struct socket_key {
	__u64 address;
	__u64 inode;
};

static __always_inline struct socket_key key_of_socket(struct sock *sk)
{
	struct socket_key key = {.address = (__u64)sk};
	struct socket *socket;

	if (FIELD(sk, sk_protocol) == IPPROTO_TCP)
		return key;
	socket = FIELD(sk, sk_socket);
	key.inode = FIELD((struct socket_alloc *)((char *)socket - offsetof(struct socket_alloc, socket)),
			  vfs_inode.i_ino);
	return key;
}

/* What is kept with a socket or a thread. */
#define KEPT_WITH(map, owner, create)                                                                         \
	({                                                                                                     \
		typeof(owner) owner_ = (owner);                                                                \
		typeof((map)->value) kept_ = bpf_map_lookup_elem(map, &owner_);                               \
		if (!kept_ && (create)) {                                                                      \
			typeof(*(map)->value) empty_;                                                          \
			__builtin_memset(&empty_, 0, sizeof(empty_));                                          \
			bpf_map_update_elem(map, &owner_, &empty_, BPF_NOEXIST);                               \
			kept_ = bpf_map_lookup_elem(map, &owner_);                                             \
		}                                                                                              \
		kept_;                                                                                         \
	})
#define FORGET(map, owner)                                                                                    \
	({                                                                                                     \
		typeof(owner) owner_ = (owner);                                                                \
		bpf_map_delete_elem(map, &owner_);                                                             \
	})

#define bpf_sk_storage_get(map, sk, value, flags) KEPT_WITH(map, key_of_socket(sk), flags)
#define bpf_sk_storage_delete(map, sk) FORGET(map, key_of_socket(sk))
#define bpf_task_storage_get(map, task, value, flags) KEPT_WITH(map, (__u64)FIELD(task, pid), flags)
#define bpf_task_storage_delete(map, task) FORGET(map, (__u64)FIELD(task, pid))

/* As the helper: NULL for what is no whole TCP socket. */
static __always_inline struct tcp_sock *bcc_tcp_sock(struct sock *sk)
{
	unsigned char state = FIELD(&sk->__sk_common, skc_state);

	if (state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV || FIELD(sk, sk_protocol) != IPPROTO_TCP)
		return NULL;
	return (struct tcp_sock *)sk;
}
#define bpf_skc_to_tcp_sock(sk) bcc_tcp_sock(sk)

static __always_inline unsigned long thread_pointer(struct task_struct *task)
{
#if defined(__aarch64__)
	return FIELD(task, thread.uw.tp_value);
#else
	return FIELD(task, thread.fsbase);
#endif
}

static __always_inline unsigned int task_state(struct task_struct *task)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 14, 0) /* 2f064a59a11f */
	return FIELD(task, __state);
#else
	return FIELD(task, state);
#endif
}

/* The kernel tells a thread's registers of typed pointers alone. */
static __always_inline bool user_registers(struct task_struct *task, struct user_registers *found)
{
	return false;
}

/* Nor its stack. */
static __always_inline void kernel_stack(struct task_struct *task, __u64 *stack, __u32 size)
{
}

/* The headers tell nothing of the queues that have it: no program that asks is loaded. */
static __always_inline __u64 scheduler_clock(struct task_struct *task)
{
	return 0;
}

static __always_inline struct gendisk *disk_of(struct request *request)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 17, 0) /* f3fa33acca9f */
	return BPF_CORE_READ(request, q, disk);
#else
	return FIELD(request, rq_disk);
#endif
}

static __always_inline bool victim_is_task(void)
{
	return LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0); /* 72ba14deb40a */
}

/* A program's arguments, as libbpf's macros of the same names take them. */
#define ARGUMENTS_0() ctx
#define ARGUMENTS_1(a) ctx, (void *)ctx[0]
#define ARGUMENTS_2(a, b) ARGUMENTS_1(a), (void *)ctx[1]
#define ARGUMENTS_3(a, b, c) ARGUMENTS_2(a, b), (void *)ctx[2]
#define ARGUMENTS_4(a, b, c, d) ARGUMENTS_3(a, b, c), (void *)ctx[3]
#define ARGUMENTS_CHOSEN(ignored, a, b, c, d, n, ...) ARGUMENTS_##n
#define ARGUMENTS(list...) ARGUMENTS_CHOSEN(ignored, ##list, 4, 3, 2, 1, 0)(list)

/* The prefix keeps apart the kernel's own functions of such names, which its headers declare. */
#define PROGRAM(name, context_type, arguments, list...)                                                       \
	on_##name(context_type *ctx);                                                                          \
	static __always_inline int name##_body(context_type *ctx, ##list);                                     \
	int on_##name(context_type *ctx)                                                                       \
	{                                                                                                      \
		_Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wint-conversion\"") return  \
			name##_body(arguments);                                                                \
		_Pragma("GCC diagnostic pop")                                                                  \
	}                                                                                                      \
	static __always_inline int name##_body(context_type *ctx, ##list)

#undef BPF_PROG
#define BPF_PROG(name, list...) PROGRAM(name, unsigned long long, ARGUMENTS(list), ##list)

#define REGISTERS_0() ctx
#define REGISTERS_1(a) ctx, (void *)PT_REGS_PARM1(ctx)
#define REGISTERS_2(a, b) REGISTERS_1(a), (void *)PT_REGS_PARM2(ctx)
#define REGISTERS_3(a, b, c) REGISTERS_2(a, b), (void *)PT_REGS_PARM3(ctx)
#define REGISTERS_CHOSEN(ignored, a, b, c, n, ...) REGISTERS_##n
#define REGISTERS(list...) REGISTERS_CHOSEN(ignored, ##list, 3, 2, 1, 0)(list)

#define BPF_KPROBE(name, list...) PROGRAM(name, struct pt_regs, REGISTERS(list), ##list)
#define RESULT(ctx) ctx, (void *)PT_REGS_RC(ctx)
#define BPF_KRETPROBE(name, list...) PROGRAM(name, struct pt_regs, RESULT(ctx), ##list)

#define SIXTH_ARGUMENT(registers) PT_REGS_PARM6(registers)

#endif

/* The kernel's helpers, faked: BPF programs compile as plain C against this and run on the host.
 *
 * A map's type, key and value are read off its declaration, as libbpf does from BTF. Arrays have all their
 * elements; hash maps hold FAKE_ROOM. Time, the running thread and failures are set by the test.
 */
#ifndef FAKE_BPF_HELPERS_H
#define FAKE_BPF_HELPERS_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEC(name)
#define __noinline __attribute__((noinline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

#define FAKE_ROOM 64
#define FAKE_MAPS 20
#define FAKE_BYTES 384

struct task_struct;
struct sock;

static struct {
	__u64 now;
	__u64 thread; /* tgid in the upper half, as the helper tells it */
	struct task_struct *task;
	const void *registers; /* of the system call that the task is in */
	bool ring_full;
	int submitted;
	char records[1024][FAKE_BYTES] __attribute__((aligned(8)));
} fake;

struct fake_map {
	const void *declaration;
	int used;
	char keys[FAKE_ROOM][FAKE_BYTES] __attribute__((aligned(8)));
	char values[FAKE_ROOM][FAKE_BYTES] __attribute__((aligned(8)));
};

static struct fake_map fake_maps[FAKE_MAPS];

static struct fake_map *fake_map_of(const void *declaration)
{
	for (int i = 0; i < FAKE_MAPS; i++) {
		if (!fake_maps[i].declaration)
			fake_maps[i].declaration = declaration;
		if (fake_maps[i].declaration == declaration)
			return &fake_maps[i];
	}
	abort();
}

static int fake_find(const struct fake_map *map, const void *key, size_t size)
{
	for (int i = 0; i < map->used; i++)
		if (!memcmp(map->keys[i], key, size))
			return i;
	return -1;
}

static int fake_update(const void *declaration, const void *key, size_t key_size, const void *value,
		       size_t value_size, __u64 flags)
{
	struct fake_map *map = fake_map_of(declaration);
	int at = fake_find(map, key, key_size);

	if (at >= 0 && flags == BPF_NOEXIST)
		return -17;
	if (at < 0) {
		if (map->used == FAKE_ROOM)
			return -7;
		at = map->used++;
		memcpy(map->keys[at], key, key_size);
	}
	memcpy(map->values[at], value, value_size);
	return 0;
}

static void *fake_lookup(const void *declaration, int type, const void *key, size_t key_size, size_t value_size)
{
	struct fake_map *map = fake_map_of(declaration);
	int at = fake_find(map, key, key_size);
	static const char zeroes[FAKE_BYTES];

	if (at < 0 && (type == BPF_MAP_TYPE_ARRAY || type == BPF_MAP_TYPE_PERCPU_ARRAY)) {
		fake_update(declaration, key, key_size, zeroes, value_size, 0);
		at = fake_find(map, key, key_size);
	}
	return at < 0 ? NULL : map->values[at];
}

static void *fake_storage(const void *declaration, const void *owner, size_t value_size, __u64 flags)
{
	struct fake_map *map = fake_map_of(declaration);
	static const char zeroes[FAKE_BYTES];

	if (fake_find(map, &owner, sizeof(owner)) < 0 && !(flags & BPF_LOCAL_STORAGE_GET_F_CREATE))
		return NULL;
	if (fake_find(map, &owner, sizeof(owner)) < 0)
		fake_update(declaration, &owner, sizeof(owner), zeroes, value_size, 0);
	return map->values[fake_find(map, &owner, sizeof(owner))];
}

static int fake_delete(const void *declaration, const void *key, size_t key_size)
{
	struct fake_map *map = fake_map_of(declaration);
	int at = fake_find(map, key, key_size);

	if (at < 0)
		return -2;
	map->used--;
	memmove(map->keys[at], map->keys[map->used], FAKE_BYTES);
	memmove(map->values[at], map->values[map->used], FAKE_BYTES);
	return 0;
}

#define FAKE_TYPE(map) ((int)(sizeof(*(map)->type) / sizeof(int)))
#define bpf_map_lookup_elem(map, item)                                                                        \
	((typeof((map)->value))fake_lookup(map, FAKE_TYPE(map), item, sizeof(*(map)->key), sizeof(*(map)->value)))
#define bpf_map_update_elem(map, item, content, flags)                                                        \
	fake_update(map, item, sizeof(*(map)->key), content, sizeof(*(map)->value), flags)
#define bpf_sk_storage_get(map, sk, initial, flags)                                                            \
	((typeof((map)->value))fake_storage(map, sk, sizeof(*(map)->value), flags))
#define bpf_task_storage_get(map, task, initial, flags)                                                        \
	((typeof((map)->value))fake_storage(map, task, sizeof(*(map)->value), flags))
/* Programs of other objects are not there. */
#define bpf_tail_call(ctx, map, index) ((void)(ctx), (void)(map))
/* Only those whose storage does not go with them ask. */
#define bpf_task_storage_delete(map, task) abort()
#define bpf_sk_storage_delete(map, sk) abort()
/* Tests make sockets as such. */
struct fake_connection {
	struct sock sock;
	struct tcp_sock tcp;
};
#define bpf_skc_to_tcp_sock(sk) ((sk)->sk_protocol == 6 ? &((struct fake_connection *)(sk))->tcp : NULL)
#define bpf_map_delete_elem(map, item) fake_delete(map, item, sizeof(*(map)->key))

static inline void *bpf_ringbuf_reserve(void *ring, __u64 size, __u64 flags)
{
	if (fake.ring_full)
		return NULL;
	/* What is not written shows. */
	return memset(fake.records[fake.submitted], 0xa5, size);
}

static inline void bpf_ringbuf_submit(void *record, __u64 flags)
{
	fake.submitted++;
}

enum { FAKE_SLEPT = 1000000 };

static inline __u64 bpf_ktime_get_boot_ns(void)
{
	return fake.now;
}

/* It stood still while the machine slept. */
static inline __u64 bpf_ktime_get_ns(void)
{
	return fake.now - FAKE_SLEPT;
}

static inline __u64 bpf_get_current_pid_tgid(void)
{
	return fake.thread;
}

static inline struct task_struct *bpf_get_current_task_btf(void)
{
	return fake.task;
}

static inline long bpf_task_pt_regs(struct task_struct *task)
{
	return (long)fake.registers;
}

static inline __u64 bpf_get_socket_cookie(struct sock *sk)
{
	return (__u64)(unsigned long)sk;
}

/* One frame, that names the thread. */
static inline long bpf_get_task_stack(struct task_struct *task, void *stack, __u32 size, __u64 flags)
{
	*(__u64 *)stack = (__u64)(unsigned long)task;
	return sizeof(__u64);
}

static inline long bpf_get_stack(void *ctx, void *stack, __u32 size, __u64 flags)
{
	return -14;
}

/* Neither the first page nor the upper half, which is the kernel's, is ever mapped for a program; and here nothing
 * but variables is.
 */
static inline long bpf_probe_read_user(void *to, __u32 size, const void *from)
{
	if ((long)from < 4096 || __asan_region_is_poisoned((void *)from, size)) {
		memset(to, 0, size);
		return -14;
	}
	memcpy(to, from, size);
	return 0;
}

static inline long bpf_probe_read_kernel(void *to, __u32 size, const void *from)
{
	memcpy(to, from, size);
	return 0;
}

#endif

/* Functions to probe, and threads that hand work to each other by number. */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>
#include <sys/sdt.h>

#define EXPORT __attribute__((visibility("default"), noinline))

void publish(const uint8_t *trace_id, const uint8_t *span_id);
void clear(void);

struct task {
	uint64_t kind;
	int32_t number;
};

EXPORT int64_t six(int8_t a, uint16_t b, int32_t c, const struct task *d, int64_t e, uint64_t f)
{
	__asm__ volatile("" ::: "memory");
	return a + b + c + e + (int64_t)f;
}

EXPORT int32_t slow(int32_t depth, uint32_t microseconds)
{
	if (depth > 0)
		return slow(depth - 1, microseconds) + 1;
	usleep(microseconds);
	__asm__ volatile("" ::: "memory");
	return -7;
}

EXPORT int32_t new_number(int32_t number)
{
	__asm__ volatile("" : "+r"(number));
	return number;
}

EXPORT void decode(const struct task *task)
{
	__asm__ volatile("" : : "r"(task) : "memory");
}

struct cells {
	int64_t used[4];
};

struct cache {
	uint64_t kind;
	struct cells *cells;
};

EXPORT int32_t release(struct cache *cache, int32_t which, int64_t amount)
{
	cache->cells->used[which] -= amount;
	__asm__ volatile("" ::: "memory");
	return which;
}

/* Of cells that are 100, 200, 300 and 400 at first. */
EXPORT void release_some(int32_t which, int64_t amount)
{
	static struct cells cells = {{100, 200, 300, 400}};
	struct cache cache = {.kind = 1, .cells = &cells};

	release(&cache, which, amount);
}

EXPORT void evict(int32_t number, uint64_t bytes)
{
	DTRACE_PROBE2(kv_cache, evicted, number, bytes);
}

static void *work(void *argument)
{
	const struct task *task = argument;

	decode(task);
	evict(task->number, 4096);
	return NULL;
}

/* A thread of its own, without a span, does a task that this thread numbers. */
EXPORT void hand_over(int32_t number)
{
	struct task task = {.kind = 1, .number = new_number(number)};
	pthread_t thread;

	pthread_create(&thread, NULL, work, &task);
	pthread_join(thread, NULL);
}

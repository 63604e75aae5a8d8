/* Allocations that fail when they are asked for too much, by CUDA's words and by malloc's. */
#include <stddef.h>

#define EXPORT __attribute__((visibility("default"), noinline))

enum { LIMIT = 1000, OUT_OF_MEMORY = 2, INVALID = 1 };

static char memory[LIMIT];

EXPORT int cuMemAlloc_v2(void **where, size_t size)
{
	if (!size)
		return INVALID;
	*where = size > LIMIT ? NULL : memory;
	__asm__ volatile("" ::: "memory");
	return size > LIMIT ? OUT_OF_MEMORY : 0;
}

EXPORT void *take(size_t size)
{
	__asm__ volatile("" : "+r"(size));
	return size > LIMIT ? NULL : memory;
}

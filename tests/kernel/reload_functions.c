/* Two functions to probe. */
#define EXPORT __attribute__((visibility("default"), noinline))

EXPORT int one(void)
{
	__asm__ volatile("" ::: "memory");
	return 1;
}

EXPORT int two(void)
{
	__asm__ volatile("" ::: "memory");
	return 2;
}

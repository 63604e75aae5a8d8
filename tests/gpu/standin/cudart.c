/* libcudart without a GPU: the runtime API, over the driver API as the real one is. */
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned long long pointer_t;

int cuMemAlloc_v2(pointer_t *, size_t);
int cuMemAllocAsync(pointer_t *, size_t, void *);
int cuMemFree_v2(pointer_t);
int cuMemcpyHtoD_v2(pointer_t, const void *, size_t);
int cuLaunchKernel(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		   unsigned int, void *, void **, void **);

/* No tail calls: a return probe needs the function to return itself. */
#define THEN_RETURN(call)                                                                                     \
	int code = (call);                                                                                    \
	__asm__ volatile("" ::: "memory");                                                                    \
	return code

EXPORT int cudaMalloc(void **address, size_t size)
{
	THEN_RETURN(cuMemAlloc_v2((pointer_t *)address, size));
}

EXPORT int cudaMallocAsync(void **address, size_t size, void *stream)
{
	THEN_RETURN(cuMemAllocAsync((pointer_t *)address, size, stream));
}

EXPORT int cudaFree(void *address)
{
	THEN_RETURN(cuMemFree_v2((pointer_t)address));
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t size, int kind)
{
	THEN_RETURN(cuMemcpyHtoD_v2((pointer_t)to, from, size));
}

/* The real ones ask the driver in ways that no probe knows; these in one call, and in one for each row. */
EXPORT int cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
			       void *stream)
{
	THEN_RETURN(cuMemcpyHtoD_v2((pointer_t)to, from, size));
}

EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
			     size_t height, int kind, void *stream)
{
	int failed = 0;

	for (size_t row = 0; row < height; row++)
		failed |= cuMemcpyHtoD_v2((pointer_t)to + row * to_pitch, (const char *)from + row * from_pitch, width);
	THEN_RETURN(failed);
}

struct dim3 {
	unsigned int x, y, z;
};

EXPORT int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
			    size_t shared, void *stream)
{
	THEN_RETURN(cuLaunchKernel((void *)function, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
				   stream, arguments, NULL));
}

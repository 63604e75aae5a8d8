/* libcuda.so.1 without a GPU: the driver API's allocations, copies and launches (scenario.h). */
#include "scenario.h"

#define EXPORT __attribute__((visibility("default")))

enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2 };

typedef unsigned long long pointer_t;

static pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block {
	pointer_t address;
	size_t size;
} blocks[4096];
static int block_count;
static uint64_t allocated;
static pointer_t next_address = 0x700000000000ull;

static int allocate(const char *function, pointer_t *address, size_t size)
{
	int code = enter(function, ANY_GPU);

	if (code)
		return code;
	pthread_mutex_lock(&heap_lock);
	if (allocated + size > scenario.cuda_bytes || block_count == 4096)
		code = CUDA_ERROR_OUT_OF_MEMORY;
	else {
		*address = next_address;
		next_address += size + 512;
		blocks[block_count++] = (struct block){*address, size};
		allocated += size;
	}
	pthread_mutex_unlock(&heap_lock);
	return code;
}

static int release(const char *function, pointer_t address)
{
	int code = enter(function, ANY_GPU);

	if (code)
		return code;
	code = CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&heap_lock);
	for (int i = 0; i < block_count; i++)
		if (blocks[i].address == address) {
			allocated -= blocks[i].size;
			blocks[i] = blocks[--block_count];
			code = CUDA_SUCCESS;
			break;
		}
	pthread_mutex_unlock(&heap_lock);
	return code;
}

EXPORT int cuInit(unsigned int flags)
{
	return enter(__func__, ANY_GPU);
}

EXPORT int cuMemAlloc_v2(pointer_t *address, size_t size)
{
	return allocate(__func__, address, size);
}

EXPORT int cuMemAllocPitch_v2(pointer_t *address, size_t *pitch, size_t width, size_t height,
			      unsigned int element)
{
	*pitch = width;
	return allocate(__func__, address, width * height);
}

EXPORT int cuMemAllocManaged(pointer_t *address, size_t size, unsigned int flags)
{
	return allocate(__func__, address, size);
}

EXPORT int cuMemAllocAsync(pointer_t *address, size_t size, void *stream)
{
	return allocate(__func__, address, size);
}

EXPORT int cuMemAllocFromPoolAsync(pointer_t *address, size_t size, void *pool, void *stream)
{
	return allocate(__func__, address, size);
}

EXPORT int cuMemFree_v2(pointer_t address)
{
	return release(__func__, address);
}

EXPORT int cuMemFreeAsync(pointer_t address, void *stream)
{
	return release(__func__, address);
}

EXPORT int cuMemcpyHtoD_v2(pointer_t to, const void *from, size_t size)
{
	return enter(__func__, ANY_GPU);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, pointer_t from, size_t size, void *stream)
{
	return enter(__func__, ANY_GPU);
}

EXPORT int cuLaunchKernel(void *function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
			  unsigned int by, unsigned int bz, unsigned int shared, void *stream, void **arguments,
			  void **extra)
{
	return enter(__func__, ANY_GPU);
}

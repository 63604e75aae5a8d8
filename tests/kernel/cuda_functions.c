/* What a program does with CUDA: linked to stand-in libraries, or with them linked in; or to NVIDIA's own
 * runtime, WITHOUT_DRIVER. */
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

struct dim3 {
	unsigned int x, y, z;
};

int cudaMalloc(void **, size_t);
int cudaMallocAsync(void **, size_t, void *);
int cudaFree(void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyPeerAsync(void *, int, const void *, int, size_t, void *);
int cudaMemcpy2DAsync(void *, size_t, const void *, size_t, size_t, size_t, int, void *);
int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, size_t, void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemAllocPitch_v2(unsigned long long *, size_t *, size_t, size_t, unsigned int);
int cuMemFree_v2(unsigned long long);
int cuMemcpyDtoHAsync_v2(void *, unsigned long long, size_t, void *);

EXPORT int64_t runtime_alloc(int64_t size)
{
	void *address = NULL;
	int code = cudaMalloc(&address, size);

	return code ? code : cudaFree(address);
}

EXPORT int64_t pool_alloc(int64_t size)
{
	void *address = NULL;
	int code = cudaMallocAsync(&address, size, NULL);

	return code ? code : cudaFree(address);
}

#ifndef WITHOUT_DRIVER
EXPORT int64_t driver_alloc(int64_t size)
{
	unsigned long long address = 0;
	int code = cuMemAlloc_v2(&address, size);

	return code ? code : cuMemFree_v2(address);
}

EXPORT int64_t pitch_alloc(int64_t width, int64_t height)
{
	unsigned long long address = 0;
	size_t pitch;
	int code = cuMemAllocPitch_v2(&address, &pitch, width, height, 4);

	return code ? code : cuMemFree_v2(address);
}

EXPORT int64_t driver_copy(int64_t size)
{
	return cuMemcpyDtoHAsync_v2(NULL, 0, size, NULL);
}
#endif

EXPORT int64_t runtime_copy(int64_t size)
{
	return cudaMemcpy(NULL, NULL, size, 1);
}

EXPORT int64_t peer_copy(int64_t size)
{
	return cudaMemcpyPeerAsync(NULL, 1, NULL, 0, size, NULL);
}

EXPORT int64_t rectangle_copy(int64_t width, int64_t height)
{
	return cudaMemcpy2DAsync(NULL, 4096, NULL, 8192, width, height, 1, NULL);
}

EXPORT int64_t launch_twice(int64_t microseconds)
{
	struct dim3 one = {1, 1, 1};

	cudaLaunchKernel(NULL, one, one, NULL, 0, NULL);
	usleep(microseconds);
	return cudaLaunchKernel(NULL, one, one, NULL, 0, NULL);
}

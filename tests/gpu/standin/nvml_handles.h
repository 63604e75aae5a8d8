/* NVML's error codes, and what its handles stand for in a scenario. */
#ifndef STANDIN_NVML_HANDLES_H
#define STANDIN_NVML_HANDLES_H

#include "scenario.h"

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NO_PERMISSION = 4,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	TIMEOUT = 10,
	GPU_IS_LOST = 15,
	ARGUMENT_VERSION_MISMATCH = 25,
};

/* A handle is a number: which GPU, and which of its MIG slices (from 1). */
typedef uintptr_t device_t;

static device_t handle_of(int gpu, int mig)
{
	return 0x1000 + gpu * 64 + mig;
}

static int gpu_of(device_t handle)
{
	return (handle - 0x1000) / 64;
}

static struct gpu *gpu_at(device_t handle)
{
	int number = gpu_of(handle);

	return number >= 0 && number < scenario.gpu_count ? &scenario.gpus[number] : NULL;
}

static struct mig *mig_at(device_t handle)
{
	struct gpu *gpu = gpu_at(handle);
	int number = (handle - 0x1000) % 64;

	return gpu && number && number <= gpu->mig_count ? &gpu->migs[number - 1] : NULL;
}

#endif

/* libnvidia-ml.so.1 without a GPU: NVML's own symbols and structures, driven by a scenario (scenario.h). */
#include "nvml_handles.h"

#define EXPORT __attribute__((visibility("default")))

static int initialised;
static unsigned int next_event;

#define ENTER(handle)                                                                                         \
	do {                                                                                                  \
		int _code = enter(__func__, gpu_of(handle));                                                  \
		if (!initialised)                                                                             \
			return UNINITIALIZED;                                                                 \
		if (_code)                                                                                    \
			return _code;                                                                         \
		if (!gpu_at(handle))                                                                          \
			return GPU_IS_LOST;                                                                   \
	} while (0)

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
	int code = enter(__func__, ANY_GPU);

	if (!code)
		code = scenario.init_code;
	if (!code)
		initialised++;
	return code;
}

EXPORT int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT int nvmlShutdown(void)
{
	if (!initialised)
		return UNINITIALIZED;
	initialised--;
	return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code)
{
	return code ? "stand-in error" : "Success";
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	int code = enter(__func__, ANY_GPU);

	if (!code)
		snprintf(version, length, "%s", "570.00.stand-in");
	return code;
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	int code = enter(__func__, ANY_GPU);

	if (!code)
		snprintf(version, length, "%s", "12.570.00");
	return code;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
	int code = enter(__func__, ANY_GPU);

	if (!code)
		*count = scenario.gpu_count;
	return code;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *handle)
{
	int code = enter(__func__, index);

	if (code)
		return code;
	if (index >= (unsigned int)scenario.gpu_count)
		return INVALID_ARGUMENT;
	*handle = handle_of(index, 0);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *handle)
{
	enter(__func__, ANY_GPU);
	for (int i = 0; i < scenario.gpu_count; i++)
		if (!strcmp(scenario.gpus[i].uuid, uuid)) {
			*handle = handle_of(i, 0);
			return enter(__func__, i);
		}
	return NOT_FOUND;
}

EXPORT int nvmlDeviceGetUUID(device_t handle, char *uuid, unsigned int length)
{
	ENTER(handle);
	snprintf(uuid, length, "%s", mig_at(handle) ? mig_at(handle)->uuid : gpu_at(handle)->uuid);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetName(device_t handle, char *name, unsigned int length)
{
	ENTER(handle);
	snprintf(name, length, "%s", "Stand-in GPU");
	return SUCCESS;
}

struct memory {
	unsigned long long total, free, used;
};

struct memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

static int read_memory(device_t handle, struct memory_v2 *memory)
{
	struct gpu *gpu = gpu_at(handle);
	struct mig *mig = mig_at(handle);

	if (!mig && gpu->mig_count)
		return NO_PERMISSION;
	memory->total = mig ? mig->total : gpu->total;
	memory->reserved = mig ? 0 : gpu->reserved;
	memory->used = at(mig ? &mig->memory : &gpu->memory, elapsed()) * MIB;
	memory->free = memory->total - memory->reserved - memory->used;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(device_t handle, struct memory_v2 *memory)
{
	ENTER(handle);
	if (memory->version != (sizeof(*memory) | 2 << 24))
		return ARGUMENT_VERSION_MISMATCH;
	return read_memory(handle, memory);
}

/* The old call counts reserved memory as used. */
EXPORT int nvmlDeviceGetMemoryInfo(device_t handle, struct memory *memory)
{
	struct memory_v2 found = {};
	int code;

	ENTER(handle);
	code = read_memory(handle, &found);
	*memory = (struct memory){found.total, found.free, found.used + found.reserved};
	return code;
}

struct utilization {
	unsigned int gpu, memory;
};

EXPORT int nvmlDeviceGetUtilizationRates(device_t handle, struct utilization *rates)
{
	ENTER(handle);
	if (gpu_at(handle)->mig_count)
		return NOT_SUPPORTED;
	rates->gpu = at(&gpu_at(handle)->utilization, elapsed());
	rates->memory = rates->gpu / 2;
	return SUCCESS;
}

struct sample {
	unsigned long long microseconds;
	unsigned long long value;
};

#define SAMPLE_PERIOD_US 166667ull /* as drivers take them: six a second */
#define SAMPLES_KEPT 100

EXPORT int nvmlDeviceGetSamples(device_t handle, int type, unsigned long long last, unsigned int *value_type,
				unsigned int *count, struct sample *samples)
{
	unsigned long long now, first;
	unsigned int n = 0;

	ENTER(handle);
	if (gpu_at(handle)->mig_count)
		return NOT_SUPPORTED;
	now = now_seconds(CLOCK_REALTIME) * 1e6;
	first = now / SAMPLE_PERIOD_US - SAMPLES_KEPT;
	if (last / SAMPLE_PERIOD_US >= first)
		first = last / SAMPLE_PERIOD_US + 1;
	*value_type = 1;
	for (; first * SAMPLE_PERIOD_US <= now && (!samples || n < *count); first++, n++) {
		if (!samples)
			continue;
		samples[n].microseconds = first * SAMPLE_PERIOD_US;
		samples[n].value = at(&gpu_at(handle)->utilization,
				      first * SAMPLE_PERIOD_US / 1e6 - scenario.begin);
	}
	*count = n;
	return n ? SUCCESS : NOT_FOUND;
}

EXPORT int nvmlDeviceGetClockInfo(device_t handle, int type, unsigned int *mhz)
{
	ENTER(handle);
	*mhz = type == 2 ? 2619 : 1980;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(device_t handle, int sensor, unsigned int *celsius)
{
	ENTER(handle);
	*celsius = 61;
	return SUCCESS;
}

struct temperature {
	unsigned int version;
	int sensor, celsius;
};

EXPORT int nvmlDeviceGetTemperatureV(device_t handle, struct temperature *temperature)
{
	ENTER(handle);
	temperature->celsius = 61;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerUsage(device_t handle, unsigned int *milliwatts)
{
	ENTER(handle);
	*milliwatts = 412345;
	return SUCCESS;
}

#define SW_POWER_CAP 4

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(device_t handle, unsigned long long *reasons)
{
	ENTER(handle);
	*reasons = SW_POWER_CAP;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(device_t handle, unsigned long long *reasons)
{
	ENTER(handle);
	*reasons = SW_POWER_CAP;
	return SUCCESS;
}

struct field_value {
	unsigned int field, scope;
	long long timestamp, latency;
	int type, code;
	union {
		double as_double;
		unsigned int as_uint;
		unsigned long long as_ulonglong;
	} value;
};

enum { FIELD_ECC_SINGLE = 3, FIELD_ECC_DOUBLE = 4, FIELD_NVLINK_TX = 138, FIELD_NVLINK_RX = 139 };
enum { FIELD_PCIE_TX = 197, FIELD_PCIE_RX = 198, FIELD_MEMORY_TEMPERATURE = 82, FIELD_ENERGY = 83 };
enum { TYPE_UINT = 1, TYPE_ULONGLONG = 3 };

static void fill_field(struct field_value *value)
{
	value->timestamp = now_seconds(CLOCK_REALTIME) * 1e6;
	value->latency = 1;
	value->code = SUCCESS;
	value->type = TYPE_ULONGLONG;
	switch (value->field) {
	case FIELD_ECC_SINGLE:
		value->value.as_ulonglong = 3;
		break;
	case FIELD_ECC_DOUBLE:
		value->value.as_ulonglong = 0;
		break;
	case FIELD_NVLINK_TX:
	case FIELD_NVLINK_RX:
		value->value.as_ulonglong = elapsed() * 1024 * 1024; /* KiB: a GiB a second */
		break;
	case FIELD_PCIE_TX:
	case FIELD_PCIE_RX:
		value->value.as_ulonglong = elapsed() * 1e8;
		break;
	case FIELD_MEMORY_TEMPERATURE:
		value->type = TYPE_UINT;
		value->value.as_uint = 70;
		break;
	case FIELD_ENERGY:
		value->value.as_ulonglong = elapsed() * 412345;
		break;
	default:
		value->code = NOT_SUPPORTED;
	}
}

EXPORT int nvmlDeviceGetFieldValues(device_t handle, int count, struct field_value *values)
{
	ENTER(handle);
	for (int i = 0; i < count; i++)
		fill_field(&values[i]);
	return SUCCESS;
}

struct process_info {
	unsigned int pid;
	unsigned long long used;
	unsigned int gpu_instance, compute_instance;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t handle, unsigned int *count,
						   struct process_info *infos)
{
	struct gpu *gpu;
	struct mig *mig;
	unsigned int room = *count;

	ENTER(handle);
	gpu = gpu_at(handle);
	mig = mig_at(handle);
	*count = 0;
	for (int i = 0; i < gpu->process_count; i++) {
		struct process *process = &gpu->processes[i];

		if (mig && process->instance != mig->instance)
			continue;
		if (infos && *count < room)
			infos[*count] = (struct process_info){
				process->pid, process->mib < 0 ? ~0ull : process->mib * MIB, process->instance, ~0u};
		++*count;
	}
	return *count > room || (!infos && *count) ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(device_t handle, unsigned int *count,
						    struct process_info *infos)
{
	ENTER(handle);
	*count = 0;
	return SUCCESS;
}

/* MIG */

EXPORT int nvmlDeviceGetMigMode(device_t handle, unsigned int *current, unsigned int *pending)
{
	ENTER(handle);
	*current = *pending = gpu_at(handle)->mig_count > 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(device_t handle, unsigned int *count)
{
	ENTER(handle);
	*count = gpu_at(handle)->mig_count ? 7 : 0;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(device_t handle, unsigned int index, device_t *mig)
{
	ENTER(handle);
	if (index >= (unsigned int)gpu_at(handle)->mig_count)
		return NOT_FOUND;
	*mig = handle_of(gpu_of(handle), index + 1);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceId(device_t handle, unsigned int *instance)
{
	ENTER(handle);
	if (!mig_at(handle))
		return NOT_SUPPORTED;
	*instance = mig_at(handle)->instance;
	return SUCCESS;
}

struct attributes {
	unsigned int before[6], gpu_instance_slices, compute_instance_slices;
	unsigned long long memory_mib;
};

EXPORT int nvmlDeviceGetAttributes_v2(device_t handle, struct attributes *attributes)
{
	ENTER(handle);
	if (!mig_at(handle))
		return NOT_SUPPORTED;
	attributes->gpu_instance_slices = mig_at(handle)->slices;
	attributes->memory_mib = mig_at(handle)->total / MIB;
	return SUCCESS;
}

/* GPM */

struct gpm_support {
	unsigned int version, supported;
};

struct gpm_metric {
	unsigned int id;
	int code;
	double value;
	const char *names[3];
};

struct gpm_metrics {
	unsigned int version, count;
	double *sample1, *sample2;
	struct gpm_metric metrics[];
};

EXPORT int nvmlGpmQueryDeviceSupport(device_t handle, struct gpm_support *support)
{
	ENTER(handle);
	support->supported = gpu_at(handle)->occupancy.given || gpu_at(handle)->mig_count;
	return SUCCESS;
}

EXPORT int nvmlGpmSampleAlloc(double **sample)
{
	*sample = calloc(1, sizeof(**sample));
	return SUCCESS;
}

EXPORT int nvmlGpmSampleFree(double *sample)
{
	free(sample);
	return SUCCESS;
}

EXPORT int nvmlGpmSampleGet(device_t handle, double *sample)
{
	ENTER(handle);
	*sample = at(&gpu_at(handle)->occupancy, elapsed());
	return SUCCESS;
}

EXPORT int nvmlGpmMigSampleGet(device_t handle, unsigned int instance, double *sample)
{
	ENTER(handle);
	for (int i = 0; i < gpu_at(handle)->mig_count; i++)
		if (gpu_at(handle)->migs[i].instance == instance) {
			*sample = gpu_at(handle)->migs[i].activity;
			return SUCCESS;
		}
	return NOT_FOUND;
}

enum { GPM_SM_UTIL = 2, GPM_SM_OCCUPANCY = 3, GPM_DRAM = 10 };

EXPORT int nvmlGpmMetricsGet(struct gpm_metrics *metrics)
{
	int code = enter(__func__, ANY_GPU);

	if (code)
		return code;
	for (unsigned int i = 0; i < metrics->count; i++) {
		struct gpm_metric *metric = &metrics->metrics[i];

		metric->code = SUCCESS;
		if (metric->id == GPM_SM_UTIL || metric->id == GPM_SM_OCCUPANCY || metric->id == GPM_DRAM)
			metric->value = *metrics->sample2;
		else
			metric->code = NOT_SUPPORTED;
	}
	return SUCCESS;
}

/* Events */

struct event_data {
	device_t device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

#define EVENT_XID 8

EXPORT int nvmlEventSetCreate(uintptr_t *set)
{
	int code = enter(__func__, ANY_GPU);

	*set = 1;
	return code;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(device_t handle, unsigned long long *types)
{
	ENTER(handle);
	*types = EVENT_XID;
	return SUCCESS;
}

static uint64_t registered;

EXPORT int nvmlDeviceRegisterEvents(device_t handle, unsigned long long types, uintptr_t set)
{
	ENTER(handle);
	if (types != EVENT_XID)
		return NOT_SUPPORTED;
	registered |= 1ull << gpu_of(handle);
	return SUCCESS;
}

static bool take_event(struct event_data *data)
{
	unsigned int number = 0;
	double now = elapsed();

	for (int i = 0; i < scenario.gpu_count; i++)
		for (int j = 0; j < scenario.gpus[i].xid_count; j++, number++)
			if (number == next_event && scenario.gpus[i].xids[j].at <= now && registered >> i & 1) {
				*data = (struct event_data){handle_of(i, 0), EVENT_XID,
							    scenario.gpus[i].xids[j].number, ~0u, ~0u};
				next_event++;
				return true;
			}
	return false;
}

/* One card of a set that is lost spoils the wait for all. */
static int spoilt_by_one(const char *function)
{
	const struct rule *error = NULL;

	pthread_mutex_lock(&scenario_lock);
	for (int i = 0; !error && i < scenario.gpu_count; i++)
		if (registered >> i & 1)
			error = fitting(scenario.errors, scenario.error_count, function, i);
	pthread_mutex_unlock(&scenario_lock);
	return error ? error->code : 0;
}

EXPORT int nvmlEventSetWait_v2(uintptr_t set, struct event_data *data, unsigned int timeout_ms)
{
	struct timespec pause = {0, 5000000};
	double end = now_seconds(CLOCK_MONOTONIC) + timeout_ms / 1e3;
	int code;

	while (now_seconds(CLOCK_MONOTONIC) < end) {
		code = enter(__func__, ANY_GPU);
		if (!code)
			code = spoilt_by_one(__func__);
		if (code)
			return code;
		if (!initialised)
			return UNINITIALIZED;
		if (take_event(data))
			return SUCCESS;
		nanosleep(&pause, NULL);
	}
	return TIMEOUT;
}

EXPORT int nvmlEventSetFree(uintptr_t set)
{
	registered = 0;
	return SUCCESS;
}

/* What a stand-in library is to play: a text file, read again whenever it changes.
 *
 * One thing a line; `#` begins a comment. The first words of a line:
 *   error FUNCTION|* GPU|* CODE     the function answers CODE (a function may be named without its version)
 *   hang FUNCTION|* GPU|*           the function does not return before this is played no more
 *   latency FUNCTION|* SPIN SLEEP   microseconds that a call computes, and that it sleeps
 *   init CODE                       what initialising answers
 *   begin SECONDS                   unix time at which the waves begin; without it, when the file was read
 *   cuda BYTES                      device memory that CUDA can allocate
 *   gpu UUID TOTAL_MIB RESERVED_MIB begins a GPU; the lines that follow are of it:
 *     memory WAVE                   used without reserved, MiB
 *     utilization WAVE              percent
 *     occupancy WAVE                percent; with it GPM is supported
 *     mig UUID INSTANCE SLICES TOTAL_MIB ACTIVITY WAVE
 *                                   a MIG instance: its percent of activity, its used memory in MiB
 *     process PID MIB [INSTANCE]    MIB -1: not available
 *     processes COUNT FIRST_PID MIB that many processes
 *     xid NUMBER SECOND             reported once, so long after the beginning
 *   A WAVE is `constant V`, `ramp FROM TO SECONDS` or `saw LOW HIGH PERIOD`.
 */
#ifndef STANDIN_SCENARIO_H
#define STANDIN_SCENARIO_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define MAX_GPUS 16
#define MAX_RULES 64
#define MAX_PROCESSES 2048
#define MAX_MIG 8
#define MAX_XIDS 16
#define MIB (1024ull * 1024)
#define ANY_GPU (-1)

struct wave {
	char kind[16];
	double a, b, period;
	bool given;
};

struct mig {
	char uuid[80];
	unsigned int instance, slices;
	double activity;
	uint64_t total;
	struct wave memory;
};

struct process {
	unsigned int pid, instance;
	int64_t mib;
};

struct xid {
	unsigned int number;
	double at;
};

struct gpu {
	char uuid[80];
	uint64_t total, reserved;
	struct wave memory, utilization, occupancy;
	struct mig migs[MAX_MIG];
	int mig_count;
	struct process processes[MAX_PROCESSES];
	int process_count;
	struct xid xids[MAX_XIDS];
	int xid_count;
};

struct rule {
	char function[64];
	int gpu;
	int code;
	unsigned int spin_us, sleep_us;
};

struct scenario {
	struct gpu gpus[MAX_GPUS];
	int gpu_count;
	struct rule errors[MAX_RULES], hangs[MAX_RULES], latencies[MAX_RULES];
	int error_count, hang_count, latency_count;
	int init_code;
	uint64_t cuda_bytes;
	double begin;
};

static struct scenario scenario;
static struct timespec scenario_changed;
static ino_t scenario_inode;
static double scenario_checked;
static pthread_mutex_t scenario_lock = PTHREAD_MUTEX_INITIALIZER;

static double now_seconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec + now.tv_nsec / 1e9;
}

static void parse_wave(const char *text, struct wave *wave)
{
	wave->given = sscanf(text, "%15s %lf %lf %lf", wave->kind, &wave->a, &wave->b, &wave->period) >= 2;
}

static double at(const struct wave *wave, double elapsed)
{
	double part;

	if (!strcmp(wave->kind, "ramp")) {
		part = elapsed < wave->period ? elapsed / wave->period : 1;
		return wave->a + (wave->b - wave->a) * part;
	}
	if (!strcmp(wave->kind, "saw")) {
		part = elapsed / wave->period;
		part -= (int64_t)part;
		return wave->a + (wave->b - wave->a) * part;
	}
	return wave->a;
}

static void parse_of_gpu(struct gpu *gpu, const char *line)
{
	struct mig *mig = &gpu->migs[gpu->mig_count];
	struct process *process = &gpu->processes[gpu->process_count];
	struct xid *xid = &gpu->xids[gpu->xid_count];
	unsigned int count, first;
	unsigned long total;
	int rest = 0;
	long mib;

	process->instance = ~0u;

	if (!strncmp(line, "memory ", 7))
		parse_wave(line + 7, &gpu->memory);
	else if (!strncmp(line, "utilization ", 12))
		parse_wave(line + 12, &gpu->utilization);
	else if (!strncmp(line, "occupancy ", 10))
		parse_wave(line + 10, &gpu->occupancy);
	else if (gpu->mig_count < MAX_MIG &&
		 sscanf(line, "mig %79s %u %u %lu %lf %n", mig->uuid, &mig->instance, &mig->slices, &total,
			&mig->activity, &rest) == 5) {
		mig->total = total * MIB;
		parse_wave(line + rest, &mig->memory);
		gpu->mig_count++;
	} else if (gpu->process_count < MAX_PROCESSES &&
		   sscanf(line, "process %u %ld %u", &process->pid, &mib, &process->instance) >= 2) {
		process->mib = mib;
		gpu->process_count++;
	} else if (sscanf(line, "processes %u %u %ld", &count, &first, &mib) == 3) {
		while (count-- && gpu->process_count < MAX_PROCESSES)
			gpu->processes[gpu->process_count++] = (struct process){first++, ~0u, mib};
	} else if (gpu->xid_count < MAX_XIDS && sscanf(line, "xid %u %lf", &xid->number, &xid->at) == 2)
		gpu->xid_count++;
}

static void parse_line(struct scenario *into, const char *line)
{
	struct rule *error = &into->errors[into->error_count];
	struct rule *hang = &into->hangs[into->hang_count];
	struct rule *latency = &into->latencies[into->latency_count];
	struct gpu *gpu = &into->gpus[into->gpu_count];
	unsigned long total, reserved;
	char which[8];

	if (into->error_count < MAX_RULES &&
	    sscanf(line, "error %63s %7s %d", error->function, which, &error->code) == 3) {
		error->gpu = which[0] == '*' ? ANY_GPU : atoi(which);
		into->error_count++;
	} else if (into->hang_count < MAX_RULES && sscanf(line, "hang %63s %7s", hang->function, which) == 2) {
		hang->gpu = which[0] == '*' ? ANY_GPU : atoi(which);
		into->hang_count++;
	} else if (into->latency_count < MAX_RULES &&
		   sscanf(line, "latency %63s %u %u", latency->function, &latency->spin_us,
			  &latency->sleep_us) == 3)
		into->latency_count++;
	else if (into->gpu_count < MAX_GPUS &&
		 sscanf(line, "gpu %79s %lu %lu", gpu->uuid, &total, &reserved) == 3) {
		gpu->total = total * MIB;
		gpu->reserved = reserved * MIB;
		into->gpu_count++;
	} else if (sscanf(line, "cuda %lu", &total) == 1)
		into->cuda_bytes = total;
	else if (sscanf(line, "init %d", &into->init_code) != 1 && sscanf(line, "begin %lf", &into->begin) != 1 &&
		 into->gpu_count)
		parse_of_gpu(&into->gpus[into->gpu_count - 1], line);
}

/* A file is put in place by a rename, so it is never seen half written. */
static void refresh(void)
{
	static struct scenario fresh;
	const char *path = getenv("STANDIN_GPU_SCENARIO");
	double now = now_seconds(CLOCK_MONOTONIC);
	char line[512];
	struct stat found;
	FILE *file;

	if (!path || now - scenario_checked < 0.01)
		return;
	scenario_checked = now;
	if (stat(path, &found) || (found.st_ino == scenario_inode &&
				   found.st_mtim.tv_sec == scenario_changed.tv_sec &&
				   found.st_mtim.tv_nsec == scenario_changed.tv_nsec))
		return;
	file = fopen(path, "r");
	if (!file)
		return;
	memset(&fresh, 0, sizeof(fresh));
	fresh.begin = now_seconds(CLOCK_REALTIME);
	while (fgets(line, sizeof(line), file))
		parse_line(&fresh, line + strspn(line, " \t"));
	fclose(file);
	scenario = fresh;
	scenario_changed = found.st_mtim;
	scenario_inode = found.st_ino;
}

static bool names(const char *rule, const char *function)
{
	return !strcmp(rule, "*") || !strncmp(rule, function, strlen(rule));
}

static void spend(const char *function)
{
	const struct rule *found = NULL;
	struct timespec rest;
	double end;

	for (int i = 0; i < scenario.latency_count; i++)
		if (names(scenario.latencies[i].function, function))
			found = &scenario.latencies[i];
	if (!found)
		return;
	/* Not the thread's own time: asking for that is a system call, as long as the calls that are played. */
	end = now_seconds(CLOCK_MONOTONIC) + found->spin_us / 1e6;
	while (found->spin_us && now_seconds(CLOCK_MONOTONIC) < end)
		;
	rest = (struct timespec){found->sleep_us / 1000000, found->sleep_us % 1000000 * 1000};
	if (found->sleep_us)
		nanosleep(&rest, NULL);
}

/* The last rule that fits a call, or NULL. */
static const struct rule *fitting(const struct rule *rules, int count, const char *function, int gpu)
{
	for (int i = count - 1; i >= 0; i--)
		if (names(rules[i].function, function) && (rules[i].gpu == ANY_GPU || rules[i].gpu == gpu))
			return &rules[i];
	return NULL;
}

/* What a call answers before it does anything: 0 to go on. */
static int enter(const char *function, int gpu)
{
	const struct timespec moment = {.tv_nsec = 10000000};
	const struct rule *error;
	int code;

	pthread_mutex_lock(&scenario_lock);
	refresh();
	while (fitting(scenario.hangs, scenario.hang_count, function, gpu)) {
		pthread_mutex_unlock(&scenario_lock);
		nanosleep(&moment, NULL);
		pthread_mutex_lock(&scenario_lock);
		refresh();
	}
	error = fitting(scenario.errors, scenario.error_count, function, gpu);
	code = error ? error->code : 0;
	pthread_mutex_unlock(&scenario_lock);
	spend(function);
	return code;
}

static double elapsed(void)
{
	return now_seconds(CLOCK_REALTIME) - scenario.begin;
}

#endif

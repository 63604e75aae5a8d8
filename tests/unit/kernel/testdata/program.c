/* Five threads, each with a record of its own; prints their tids, and waits until its input ends. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

struct record {
	uint8_t trace_id[16], span_id[8], valid, flags;
	uint16_t size;
};

#ifdef DLOPEN
static void (*publish)(struct record *);
#else
void publish(struct record *record);
#endif

#define THREADS 5

static struct record records[THREADS];
static long tids[THREADS];
static pthread_barrier_t started, loaded, ready, finished;

static void *work(void *argument)
{
	long number = (long)argument;
	struct record *record = &records[number];

	record->trace_id[15] = number + 1;
	record->span_id[7] = number + 101;
	record->flags = 1;
	record->valid = 1;
	tids[number] = syscall(SYS_gettid);
	/* The module is loaded when all threads exist: their DTVs know nothing of it. */
	pthread_barrier_wait(&started);
	pthread_barrier_wait(&loaded);
	/* The last one never publishes: its block may not even exist. */
	if (number != THREADS - 1)
		publish(record);
	pthread_barrier_wait(&ready);
	pthread_barrier_wait(&finished);
	return NULL;
}

static int load(const char *path)
{
#ifdef DLOPEN
	void *module = dlopen(path, RTLD_NOW);

	if (!module) {
		fprintf(stderr, "%s\n", dlerror());
		return -1;
	}
	publish = (void (*)(struct record *))dlsym(module, "publish");
#else
	(void)path;
#endif
	return 0;
}

int main(int count, char **arguments)
{
	pthread_t threads[THREADS];
	char end;

	pthread_barrier_init(&started, NULL, THREADS + 1);
	pthread_barrier_init(&loaded, NULL, THREADS + 1);
	pthread_barrier_init(&ready, NULL, THREADS + 1);
	pthread_barrier_init(&finished, NULL, THREADS + 1);
	for (long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)i);
	pthread_barrier_wait(&started);
	if (load(count > 1 ? arguments[1] : NULL))
		return 1;
	pthread_barrier_wait(&loaded);
	pthread_barrier_wait(&ready);
	for (int i = 0; i < THREADS; i++)
		printf("%ld ", tids[i]);
	printf("\n");
	fflush(stdout);
	while (read(0, &end, 1) > 0)
		;
	pthread_barrier_wait(&finished);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

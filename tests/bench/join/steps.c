/* A send, a receive and a switch between two threads, each timed on its own with caches as cold as a request of a
 * Python server leaves them. Publishes a span as OTEP 4947 asks.
 *
 * Usage: steps CPU. Answers each line of input, a count, with a line of JSON: the nanoseconds that each step took, the
 * median of so many.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	DATA = 1536 * 1024, /* more than a CPU has for itself, about what CPython touches for a request */
	CODE = 64 * 1024,
	LINE = 64,
	MESSAGE = 100,
	MOST = 4096, /* of each step, an answer */
};

enum step { SEND, RECEIVE, RECEIVE_AT_NO_SPAN, SWITCH, SWITCH_AT_NO_SPAN, STEPS };

struct record {
	uint64_t trace_id[2];
	uint64_t span_id;
	uint8_t valid;
	uint8_t trace_flags;
	uint16_t attributes_size;
	uint32_t pad;
};

/* The record behind the variable, as otel_bridge.context has it. */
struct variable {
	struct record *record;
	uint64_t pad;
	struct record behind;
};

__attribute__((visibility("default"), aligned(LINE))) __thread struct variable otel_thread_ctx_v1;

static char *data;
static void (*code)(void);
static int turn; /* whose it is: 0 the main thread's, 1 the other's */
static volatile int at_span = 1; /* read by the other thread */
static double took[STEPS][MOST];

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void publish(int valid)
{
	static uint64_t spans;

	otel_thread_ctx_v1.behind = (struct record){{1, 2}, 1 + spans++, valid, 1, 0, 0};
	otel_thread_ctx_v1.record = &otel_thread_ctx_v1.behind;
}

static double now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1e9 + at.tv_nsec;
}

static void use_caches(void)
{
	long sum = 0;

	for (size_t at = 0; at < DATA; at += LINE)
		sum += *(volatile char *)(data + at);
	code();
}

static void futex(int operation, int value)
{
	syscall(SYS_futex, &turn, operation | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

static void hand_over(int to)
{
	__atomic_store_n(&turn, to, __ATOMIC_RELEASE);
	futex(FUTEX_WAKE, 1);
	while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) == to)
		futex(FUTEX_WAIT, to);
}

/* Hands every turn back. */
static void *other(void *nothing)
{
	while (__atomic_load_n(&turn, __ATOMIC_ACQUIRE) == 0)
		futex(FUTEX_WAIT, 0);
	for (;;) {
		publish(at_span);
		hand_over(0);
	}
	return nothing;
}

static void connect_both(int *client, int *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	socklen_t size = sizeof(address);

	*client = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &size) ||
	    connect(*client, (struct sockaddr *)&address, size))
		die("connect");
	*server = accept(listener, NULL, NULL);
	if (setsockopt(*client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
		die("TCP_NODELAY");
	close(listener);
}

static double sending(int socket)
{
	static const char message[MESSAGE];
	double began;

	use_caches();
	began = now();
	if (send(socket, message, sizeof(message), 0) != sizeof(message))
		die("send");
	return now() - began;
}

static double receiving(int socket)
{
	char message[MESSAGE];
	double began;

	use_caches();
	began = now();
	if (recv(socket, message, sizeof(message), MSG_WAITALL) != sizeof(message))
		die("recv");
	return now() - began;
}

static void one_of_each(int number, int client, int server)
{
	double began;

	publish(1);
	took[SEND][number] = sending(client);
	took[RECEIVE][number] = receiving(server);
	sending(client);
	publish(0);
	took[RECEIVE_AT_NO_SPAN][number] = receiving(server);
	for (enum step step = SWITCH; step <= SWITCH_AT_NO_SPAN; step++) {
		at_span = step == SWITCH;
		publish(at_span);
		hand_over(1); /* so that the other thread sees it */
		use_caches();
		began = now();
		hand_over(1);
		took[step][number] = (now() - began) / 2;
	}
}

static int compare(const void *one, const void *other_)
{
	double a = *(const double *)one, b = *(const double *)other_;

	return (a > b) - (a < b);
}

static void answer(int count)
{
	for (int step = 0; step < STEPS; step++) {
		qsort(took[step], count, sizeof(double), compare);
		printf("%s%.0f", step ? ", " : "[", took[step][count / 2]);
	}
	printf("]\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int client, server, count;
	pthread_t thread;
	cpu_set_t cpu;

	CPU_ZERO(&cpu);
	CPU_SET(argc > 1 ? atoi(argv[1]) : 0, &cpu);
	if (sched_setaffinity(0, sizeof(cpu), &cpu))
		die("sched_setaffinity");
	data = mmap(NULL, DATA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	code = mmap(NULL, CODE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (data == MAP_FAILED || code == MAP_FAILED)
		die("mmap");
#if defined(__x86_64__)
	memset(code, 0x90, CODE - 1); /* nop */
	((unsigned char *)code)[CODE - 1] = 0xc3; /* ret */
#else
	for (int at = 0; at < CODE / 4; at++)
		((uint32_t *)code)[at] = at < CODE / 4 - 1 ? 0xd503201f : 0xd65f03c0; /* nop; ret */
	__builtin___clear_cache((char *)code, (char *)code + CODE);
#endif
	connect_both(&client, &server);
	publish(1);
	if (pthread_create(&thread, NULL, other, NULL))
		die("pthread_create");
	while (scanf("%d", &count) == 1 && count > 0 && count <= MOST) {
		for (int number = 0; number < count; number++)
			one_of_each(number, client, server);
		answer(count);
	}
	return 0;
}

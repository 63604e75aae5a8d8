#include "process.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#define NAME "OTEL_CTX"
#define VERSION 2

struct header {
	char signature[8];
	uint32_t version;
	uint32_t payload_size;
	uint64_t published_at_ns; /* CLOCK_BOOTTIME; 0 while it is being updated */
	uint64_t payload;
};

_Static_assert(sizeof(struct header) == 32, "OTEP 4719");
_Static_assert(offsetof(struct header, published_at_ns) == 16, "OTEP 4719");

static struct header *header;
/* A reader may be at the payload while it is replaced: the one before is kept until the next. */
static void *payload_now, *payload_before;

static size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static void forget(void)
{
	header = NULL;
}

int process_prepare(void)
{
	return pthread_atfork(NULL, NULL, forget);
}

static uint64_t boot_time(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* A memfd shows its name in /proc/PID/maps on any kernel. Kernels before 6.3 do not know NOEXEC_SEAL. */
static int open_memfd(size_t size)
{
	int file = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

	if (file < 0)
		file = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (file >= 0 && ftruncate(file, (off_t)size)) {
		close(file);
		return -1;
	}
	return file;
}

static struct header *map_header(void)
{
	int file = open_memfd(page_size());
	int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_PRIVATE;
	void *memory = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, flags, file, 0);
	int error = errno;

	if (file >= 0)
		close(file);
	if (memory == MAP_FAILED) {
		errno = error;
		return NULL;
	}
	if (madvise(memory, page_size(), MADV_DONTFORK)) {
		error = errno;
		munmap(memory, page_size());
		errno = error;
		return NULL;
	}
	return memory;
}

/* Readers that watch prctl learn of the publication by the attempt, so it is made even where it must fail. */
static void name_mapping(void)
{
	(void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, header, page_size(), NAME);
}

static void keep_payload(void *payload)
{
	free(payload_before);
	payload_before = payload_now;
	payload_now = payload;
}

int process_publish(const void *bytes, size_t size)
{
	uint64_t published_at = boot_time();
	void *payload;

	if (size > UINT32_MAX)
		return EMSGSIZE;
	payload = malloc(size ? size : 1);
	if (!payload)
		return ENOMEM;
	memcpy(payload, bytes, size);
	if (!header && !(header = map_header())) {
		free(payload);
		return errno;
	}
	if (published_at <= header->published_at_ns)
		published_at = header->published_at_ns + 1;
	__atomic_store_n(&header->published_at_ns, 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	header->version = VERSION;
	__atomic_store_n(&header->payload_size, (uint32_t)size, __ATOMIC_RELAXED);
	__atomic_store_n(&header->payload, (uint64_t)(uintptr_t)payload, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	__atomic_store_n(&header->published_at_ns, published_at, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	memcpy(header->signature, NAME, sizeof(header->signature));
	keep_payload(payload);
	name_mapping();
	return 0;
}

void process_withdraw(void)
{
	if (!header)
		return;
	munmap(header, page_size());
	header = NULL;
	keep_payload(NULL);
}

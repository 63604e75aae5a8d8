/* Checks of the host tests: the first that fails ends the program, with its place. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition)                                                                                      \
	do {                                                                                                   \
		if (!(condition)) {                                                                            \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
			exit(1);                                                                               \
		}                                                                                              \
	} while (0)

/* Forgets all maps, records and counters. */
#define RESET()                                                                                               \
	do {                                                                                                   \
		memset(&fake, 0, sizeof(fake));                                                                \
		memset(fake_maps, 0, sizeof(fake_maps));                                                       \
	} while (0)

/* Sets what user space sets before a program is loaded; the rest of the structure becomes zero. */
#define CONFIGURE(constants, fields...)                                                                       \
	do {                                                                                                   \
		unsigned long page = sysconf(_SC_PAGESIZE), from = (unsigned long)&(constants) & -page;        \
		unsigned long to = (unsigned long)(&(constants) + 1);                                          \
		CHECK(!mprotect((void *)from, to - from, PROT_READ | PROT_WRITE));                             \
		memcpy((void *)&(constants), (const void *)&(__typeof__(constants)){fields}, sizeof(constants)); \
		asm volatile("" ::: "memory");                                                                 \
	} while (0)

#define RUN(test)                                                                                             \
	do {                                                                                                   \
		printf("%s\n", #test);                                                                         \
		fflush(stdout);                                                                                \
		RESET();                                                                                       \
		test();                                                                                        \
	} while (0)

#endif

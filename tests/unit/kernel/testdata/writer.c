/* A writer of thread contexts that is not ours, built in every way the OTEP allows. */
#include <stdint.h>

struct record {
	uint8_t trace_id[16], span_id[8], valid, flags;
	uint16_t size;
};

#ifndef NO_SYMBOL
__attribute__((visibility("default"))) _Thread_local struct record *otel_thread_ctx_v1;
#ifdef LARGE
/* More than glibc has to spare in the static block, so that it must be dynamic. */
_Thread_local volatile char filler[1 << 16];
#endif

void publish(struct record *record)
{
#ifdef LARGE
	filler[0] = 1;
#endif
	otel_thread_ctx_v1 = record;
}
#else
/* Ordinary data of the same name. */
__attribute__((visibility("default"))) struct record *otel_thread_ctx_v1;

void publish(struct record *record)
{
	otel_thread_ctx_v1 = record;
}
#endif

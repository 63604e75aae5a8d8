/* Publishes spans as OTEP 4947 asks, and nothing else: what the probes' tests stamp events with.
 *
 * Built several times with different TLS models; loaded with ctypes by tests/kernel/worker.py.
 */
#include <arpa/inet.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

struct record {
	uint8_t trace_id[16];
	uint8_t span_id[8];
	uint8_t valid;
	uint8_t trace_flags;
	uint16_t attributes_size;
	uint32_t pad;
	uint64_t changes; /* as otel_bridge.context counts them: odd while it is written */
};

__attribute__((visibility("default"))) __thread struct record *otel_thread_ctx_v1;

static __thread struct record record;

void publish(const uint8_t *trace_id, const uint8_t *span_id)
{
	record.changes++;
	record.valid = 0;
	__asm__ volatile("" ::: "memory");
	memcpy(record.trace_id, trace_id, sizeof(record.trace_id));
	memcpy(record.span_id, span_id, sizeof(record.span_id));
	record.trace_flags = 1;
	__asm__ volatile("" ::: "memory");
	record.valid = 1;
	record.changes++;
	otel_thread_ctx_v1 = &record;
}

void clear(void)
{
	record.valid = 0;
}

/* Connect to a port of this machine that nobody listens on, so many times; answers how often that was refused. */
int refuse(int64_t port, int64_t times)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int refused = 0;

	to.sin_port = htons(port);
	while (times-- > 0) {
		int client = socket(AF_INET, SOCK_STREAM, 0);

		refused += connect(client, (struct sockaddr *)&to, sizeof(to)) != 0;
		close(client);
	}
	return refused;
}

/* Half written, as an interrupt would see it. */
void tear(void)
{
	record.changes |= 1;
	record.valid = 0;
	otel_thread_ctx_v1 = &record;
}

/* The pointer leads nowhere. */
void misplace(void)
{
	otel_thread_ctx_v1 = (struct record *)8;
}

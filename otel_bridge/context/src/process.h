/* What this process says about itself, as OTEP 4719 lays it out. */
#ifndef OTEL_CONTEXT_PROCESS_H
#define OTEL_CONTEXT_PROCESS_H

#include <stddef.h>

/* Publishes a serialized ProcessContext, or replaces the one that is published. 0, or an errno. */
int process_publish(const void *payload, size_t size);
void process_withdraw(void);

/* Must run once before the first publish: a child does not inherit the mapping, and must forget it. */
int process_prepare(void);

#endif

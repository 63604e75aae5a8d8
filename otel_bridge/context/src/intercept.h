/* Before CPython 3.14: being told of every switch of context. */
#ifndef OTEL_CONTEXT_INTERCEPT_H
#define OTEL_CONTEXT_INTERCEPT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

/* Whether what `intercept.c` changes is what it expects; sets an exception when not. */
int intercept_start(void);
void intercept_stop(void);

/* Looks for modules that were loaded since and call PyContext_Enter themselves (uvloop does). True when there
 * were any.
 */
bool intercept_new_modules(void);

/* Slots that lead to us now. */
unsigned intercept_slots(void);

#endif

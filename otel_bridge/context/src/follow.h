/* Keeps the record in step with the contextvars.Context that the thread runs in. */
#ifndef OTEL_CONTEXT_FOLLOW_H
#define OTEL_CONTEXT_FOLLOW_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#include "record.h"

/* CPython tells of every switch of context from 3.14 on; before, we stand in its way. */
#define HAVE_CONTEXT_WATCHER (PY_VERSION_HEX >= 0x030E0000)

struct follow_counts {
	uint64_t stale; /* contexts that carried a span which had ended: nothing was published for them */
	uint64_t failures; /* spans that could not be asked for their ids */
	uint64_t unfollowed; /* attaches in a context whose end we would not have seen: nothing was published */
};

extern struct follow_counts follow_counts;

/* What opentelemetry keeps where, and whom to tell what; see follow() in module.c. Takes its own references. */
int follow_start(PyObject *variable, PyObject *span_key, PyObject *non_recording_type, PyObject *on_first_span,
		 PyObject *on_greenlets);
void follow_stop(void);
bool follow_active(void);

/* A Context begins or ends to be the current one of this thread. -1: an exception that is not ours to handle
 * (KeyboardInterrupt) is set.
 */
int follow_enter(PyObject *context);
int follow_leave(PyObject *context);

/* Publishes what the current Context says. */
int follow_sync(void);

PyObject *follow_attach(PyObject *module, PyObject *context);
PyObject *follow_detach(PyObject *module, PyObject *token);

/* The ids of an opentelemetry SpanContext: 1 when they are those of a local span, 0 when they are not. */
int span_context_ids(PyObject *span_context, uint8_t ids[IDS_SIZE], uint8_t *trace_flags);

/* Ints as opentelemetry holds ids. -1: not an int, or one that does not fit. */
int ids_from_ints(PyObject *trace_id, PyObject *span_id, uint8_t ids[IDS_SIZE]);

#endif

#include "follow.h"

#include "intercept.h"

#if !HAVE_CONTEXT_WATCHER
/* Whether a context is entered stands only in the structure itself. The header is that of the interpreter
 * compiled against, so the layout is right by construction.
 */
#define Py_BUILD_CORE 1
#include <internal/pycore_context.h>
#undef Py_BUILD_CORE
#endif

struct follow_counts follow_counts;

/* Asking a span runs Python code, and so other threads, one of which may stop the following: what is set here
 * stays until it is replaced, and whether it is still wanted is asked before each write.
 */
static bool active;
static PyObject *variable; /* the ContextVar that holds opentelemetry's Context, a dict */
static PyObject *key; /* of the span in that dict */
static PyTypeObject *non_recording; /* opentelemetry.trace.NonRecordingSpan */
static PyObject *first_span; /* called once, with the first recording span; then NULL */
static PyTypeObject *learned; /* the class of the last spans that learn() looked at */
static bool learned_plain; /* its spans keep in _context and _end_time what their methods say */
static PyObject *greenlets; /* called once on each thread that publishes in a process with greenlets */
static PyObject *name_greenlet;
static PyObject *name_is_recording, *name_get_span_context, *name_context, *name_end_time;
static PyInterpreterState *interpreter;
static uint32_t generation; /* of following: what threads noted during an earlier one is void */
#if HAVE_CONTEXT_WATCHER
static int watcher = -1;
#endif

static struct thread_state *current_thread(void)
{
	struct thread_state *thread = thread_state();

	if (thread->generation != generation) {
		thread->generation = generation;
		thread->entered_count = 0;
		thread->greenlets_followed = 0;
	}
	return thread;
}

bool follow_active(void)
{
	return active && PyInterpreterState_Get() == interpreter;
}

/* What is not an Exception (KeyboardInterrupt, SystemExit) goes on to the application: -1. */
static int forgive(void)
{
	if (!PyErr_ExceptionMatches(PyExc_Exception))
		return -1;
	PyErr_Clear();
	follow_counts.failures++;
	return 0;
}

static int long_bytes(PyObject *value, uint8_t *bytes, size_t size)
{
	if (!PyLong_Check(value)) {
		PyErr_Format(PyExc_TypeError, "an id is an int, not %.100s", Py_TYPE(value)->tp_name);
		return -1;
	}
#if PY_VERSION_HEX >= 0x030D0000
	Py_ssize_t needed = PyLong_AsNativeBytes(value, bytes, (Py_ssize_t)size,
						 Py_ASNATIVEBYTES_BIG_ENDIAN | Py_ASNATIVEBYTES_UNSIGNED_BUFFER |
							 Py_ASNATIVEBYTES_REJECT_NEGATIVE);

	if (needed < 0 && PyErr_ExceptionMatches(PyExc_ValueError))
		PyErr_SetString(PyExc_OverflowError, "an id that is negative");
	if (needed > (Py_ssize_t)size)
		PyErr_Format(PyExc_OverflowError, "an id of more than %zu bytes", size);
	return needed < 0 || needed > (Py_ssize_t)size ? -1 : 0;
#else
	return _PyLong_AsByteArray((PyLongObject *)value, bytes, size, 0, 0);
#endif
}

int ids_from_ints(PyObject *trace_id, PyObject *span_id, uint8_t ids[IDS_SIZE])
{
	if (long_bytes(trace_id, ids, TRACE_ID_SIZE))
		return -1;
	return long_bytes(span_id, ids + TRACE_ID_SIZE, SPAN_ID_SIZE);
}

static bool all_zero(const uint8_t *bytes, size_t size)
{
	uint8_t any = 0;

	for (size_t i = 0; i < size; i++)
		any |= bytes[i];
	return !any;
}

/* A SpanContext is a tuple: trace id, span id, is_remote, flags, state, is_valid. */
int span_context_ids(PyObject *context, uint8_t ids[IDS_SIZE], uint8_t *trace_flags)
{
	unsigned long flags;

	if (!PyTuple_Check(context) || PyTuple_GET_SIZE(context) < 4) {
		PyErr_Format(PyExc_TypeError, "a span context is a SpanContext, not %.100s",
			     Py_TYPE(context)->tp_name);
		return -1;
	}
	/* The span of another process: whatever this thread does is not done in that span. */
	if (PyTuple_GET_ITEM(context, 2) == Py_True)
		return 0;
	if (ids_from_ints(PyTuple_GET_ITEM(context, 0), PyTuple_GET_ITEM(context, 1), ids))
		return -1;
	flags = PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(context, 3));
	if (flags == (unsigned long)-1 && PyErr_Occurred())
		return -1;
	*trace_flags = (uint8_t)flags;
	return !all_zero(ids, TRACE_ID_SIZE) && !all_zero(ids + TRACE_ID_SIZE, SPAN_ID_SIZE);
}

/* 1: the span is under way. 0: it has ended. -1: an exception is set. */
static int is_under_way(PyObject *span)
{
	PyObject *answer;
	int recording;

	/* Not sampled: it has no end that could be seen, and is the current span all the same. */
	if (Py_TYPE(span) == non_recording)
		return 1;
	answer = PyObject_CallMethodNoArgs(span, name_is_recording);
	if (!answer)
		return -1;
	recording = PyObject_IsTrue(answer);
	Py_DECREF(answer);
	return recording;
}

static int tell_first_span(PyObject *span)
{
	PyObject *callback = first_span;
	PyObject *result;

	first_span = NULL;
	result = PyObject_CallOneArg(callback, span);
	Py_DECREF(callback);
	if (!result)
		return -1;
	Py_DECREF(result);
	return 0;
}

/* Asking a span costs two calls of Python functions, at every callback of an event loop. The SDK's spans keep
 * both answers in plain attributes: once a class was seen to do so, its spans are looked at instead.
 */
static void learn(PyObject *span, PyObject *said_context)
{
	PyObject *context = PyObject_GetAttr(span, name_context);
	PyObject *end_time = context ? PyObject_GetAttr(span, name_end_time) : NULL;

	learned_plain = context == said_context && end_time == Py_None;
	Py_XSETREF(learned, (PyTypeObject *)Py_NewRef(Py_TYPE(span)));
	PyErr_Clear();
	Py_XDECREF(context);
	Py_XDECREF(end_time);
}

/* A new reference to the SpanContext; `under_way` as by is_under_way. */
static PyObject *ask(PyObject *span, int *under_way)
{
	PyObject *context, *end_time;

	if (Py_TYPE(span) != learned || !learned_plain) {
		context = PyObject_CallMethodNoArgs(span, name_get_span_context);
		*under_way = context ? is_under_way(span) : -1;
		if (*under_way == 1 && Py_TYPE(span) != learned && Py_TYPE(span) != non_recording)
			learn(span, context);
		return context;
	}
	end_time = PyObject_GetAttr(span, name_end_time);
	*under_way = end_time ? end_time == Py_None : -1;
	Py_XDECREF(end_time);
	return end_time ? PyObject_GetAttr(span, name_context) : NULL;
}

/* 1: `ids` are those of a local span that is under way. 0: there is none. -1: an exception is set. */
static int span_ids(PyObject *span, uint8_t ids[IDS_SIZE], uint8_t *trace_flags)
{
	int found, under_way;
	PyObject *context = ask(span, &under_way);

	found = context && under_way >= 0 ? span_context_ids(context, ids, trace_flags) : -1;
	Py_XDECREF(context);
	if (found <= 0)
		return found;
	if (under_way == 0)
		follow_counts.stale++;
	if (under_way == 1 && first_span && Py_TYPE(span) != non_recording && tell_first_span(span))
		return -1;
	return under_way;
}

/* A greenlet takes its context along when it is switched away, and nobody is told: greenlet's trace function
 * must be ours before a span is published that could be left behind.
 */
static int follow_greenlets(struct thread_state *thread)
{
	PyObject *callback, *result;

	if (thread->greenlets_followed)
		return 0;
	if (!PyDict_GetItemWithError(PyImport_GetModuleDict(), name_greenlet))
		return PyErr_Occurred() ? -1 : 0;
	thread->greenlets_followed = 1;
	callback = Py_NewRef(greenlets);
	result = PyObject_CallNoArgs(callback);
	Py_DECREF(callback);
	if (!result)
		return -1;
	Py_DECREF(result);
	return 0;
}

static int publish(struct thread_state *thread, PyObject *context)
{
	uint8_t ids[IDS_SIZE];
	uint8_t trace_flags = 0;
	PyObject *span = NULL;
	int found = 0;

	if (context && PyDict_Check(context))
		span = PyDict_GetItemWithError(context, key);
	if (span) {
		Py_INCREF(span);
		found = span_ids(span, ids, &trace_flags);
		Py_DECREF(span);
	} else if (PyErr_Occurred()) {
		found = -1;
	}
	if (found == 1 && follow_greenlets(thread))
		found = -1;
	if (found == 1 && active && thread->generation == generation) {
		record_write(&thread->record, ids, trace_flags);
		return 0;
	}
	record_clear(&thread->record);
	return found < 0 ? forgive() : 0;
}

#if HAVE_CONTEXT_WATCHER

static bool may_publish(struct thread_state *thread)
{
	(void)thread;
	return true;
}

#else

/* A record may be published only if we see the end of the context that it is published for: of one that was
 * entered before we stood in the way, or past us, we do not. A thread's outermost context is never entered
 * and ends with the thread.
 */
static bool sees_end(struct thread_state *thread)
{
	PyContext *current = (PyContext *)PyThreadState_Get()->context;

	if (!current || !current->ctx_entered)
		return true;
	for (uint32_t i = thread->entered_count; i-- > 0;)
		if ((thread->entered[i] & ~(uintptr_t)1) == (uintptr_t)current)
			return true;
	return false;
}

static bool may_publish(struct thread_state *thread)
{
	if (sees_end(thread))
		return true;
	/* Perhaps a module that was loaded since enters contexts past us: from its next callback on it will not. */
	intercept_new_modules();
	follow_counts.unfollowed++;
	return false;
}

#endif

static int sync_thread(struct thread_state *thread)
{
	PyObject *context = NULL;
	int result;

	if (!may_publish(thread)) {
		record_clear(&thread->record);
		return 0;
	}
	if (PyContextVar_Get(variable, NULL, &context)) {
		record_clear(&thread->record);
		return forgive();
	}
	result = publish(thread, context);
	Py_XDECREF(context);
	return result;
}

int follow_sync(void)
{
	return sync_thread(current_thread());
}

int follow_enter(PyObject *context)
{
	struct thread_state *thread = current_thread();
	PyObject *value;
	int has, result;

	if (thread->entered_count == ENTERED_MAX) {
		record_clear(&thread->record);
		return 0;
	}
	/* A context is a pointer to an aligned object: its lowest bit is free to say what was there before. */
	thread->entered[thread->entered_count++] = (uintptr_t)context | thread->record.valid;
	has = PySequence_Contains(context, variable);
	if (has == 0) {
		record_clear(&thread->record);
		return 0;
	}
	value = has < 0 ? NULL : PyObject_GetItem(context, variable);
	if (!value) {
		record_clear(&thread->record);
		result = forgive();
	} else {
		result = publish(thread, value);
		Py_DECREF(value);
	}
	if (result)
		thread->entered_count--;
	return result;
}

/* Whether a span was published when `context` was entered. Not always the last one that was entered: greenlets
 * leave in any order.
 */
static bool forget_entered(struct thread_state *thread, PyObject *context)
{
	for (uint32_t i = thread->entered_count; i-- > 0;) {
		uintptr_t entry = thread->entered[i];

		if ((entry & ~(uintptr_t)1) != (uintptr_t)context)
			continue;
		thread->entered_count--;
		memmove(&thread->entered[i], &thread->entered[i + 1],
			(thread->entered_count - i) * sizeof(entry));
		return entry & 1;
	}
	return true;
}

int follow_leave(PyObject *context)
{
	struct thread_state *thread = current_thread();
	PyObject *type, *value, *traceback;
	int result;

	if (!forget_entered(thread, context)) {
		record_clear(&thread->record);
		return 0;
	}
	PyErr_Fetch(&type, &value, &traceback);
	result = sync_thread(thread);
	if (type) {
		PyErr_Clear();
		PyErr_Restore(type, value, traceback);
		return 0;
	}
	return result;
}

/* Whoever gets an exception instead of a token could not detach. */
static void undo_attach(PyObject **token)
{
	PyObject *type, *value, *traceback;

	PyErr_Fetch(&type, &value, &traceback);
	if (PyContextVar_Reset(variable, *token))
		PyErr_WriteUnraisable(variable);
	Py_CLEAR(*token);
	PyErr_Restore(type, value, traceback);
}

PyObject *follow_attach(PyObject *module, PyObject *context)
{
	struct thread_state *thread;
	PyObject *token;

	(void)module;
	if (!variable) {
		PyErr_SetString(PyExc_RuntimeError, "attach() before follow()");
		return NULL;
	}
	token = PyContextVar_Set(variable, context);
	if (!token)
		return NULL;
	if (!active)
		return token;
	thread = current_thread();
	if (!may_publish(thread))
		record_clear(&thread->record);
	else if (publish(thread, context))
		undo_attach(&token);
	return token;
}

PyObject *follow_detach(PyObject *module, PyObject *token)
{
	(void)module;
	if (!variable) {
		PyErr_SetString(PyExc_RuntimeError, "detach() before follow()");
		return NULL;
	}
	if (PyContextVar_Reset(variable, token) || (active && follow_sync()))
		return NULL;
	Py_RETURN_NONE;
}

#if HAVE_CONTEXT_WATCHER

static int switched(PyContextEvent event, PyObject *context)
{
	PyObject *pending;
	int result;

	(void)context;
	if (event != Py_CONTEXT_SWITCHED || !follow_active())
		return 0;
	pending = PyErr_GetRaisedException();
	result = follow_sync();
	if (pending) {
		PyErr_Clear();
		PyErr_SetRaisedException(pending);
		return 0;
	}
	return result;
}

static int begin(void)
{
	watcher = PyContext_AddWatcher(switched);
	return watcher < 0 ? -1 : 0;
}

static void end(void)
{
	if (watcher >= 0 && PyContext_ClearWatcher(watcher))
		PyErr_WriteUnraisable(NULL);
	watcher = -1;
}

#else

static int begin(void)
{
	return intercept_start();
}

static void end(void)
{
	intercept_stop();
}

#endif

static int intern(PyObject **name, const char *text)
{
	if (!*name)
		*name = PyUnicode_InternFromString(text);
	return *name ? 0 : -1;
}

int follow_start(PyObject *var, PyObject *span_key, PyObject *non_recording_type, PyObject *on_first_span,
		 PyObject *on_greenlets)
{
	if (intern(&name_is_recording, "is_recording") || intern(&name_get_span_context, "get_span_context") ||
	    intern(&name_greenlet, "greenlet") || intern(&name_context, "_context") || intern(&name_end_time, "_end_time"))
		return -1;
	follow_stop();
	interpreter = PyInterpreterState_Get();
	generation++;
	Py_XSETREF(key, Py_NewRef(span_key));
	Py_XSETREF(non_recording, (PyTypeObject *)Py_NewRef(non_recording_type));
	Py_XSETREF(first_span, Py_NewRef(on_first_span));
	Py_XSETREF(greenlets, Py_NewRef(on_greenlets));
	Py_XSETREF(variable, Py_NewRef(var));
	if (begin())
		return -1;
	active = true;
	return 0;
}

void follow_stop(void)
{
	if (!active)
		return;
	active = false;
	end();
	records_clear();
}

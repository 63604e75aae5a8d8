/* otel_bridge.context._record: what Python sees of record.c, follow.c, intercept.c and process.c. */
#include "follow.h"
#include "intercept.h"
#include "process.h"

static PyObject *publish(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
	uint8_t ids[IDS_SIZE];
	unsigned long flags = 0;

	(void)module;
	if (count < 2 || count > 3) {
		PyErr_Format(PyExc_TypeError, "publish(trace_id, span_id, trace_flags=0) takes 2 or 3 arguments, not %zd",
			     count);
		return NULL;
	}
	if (ids_from_ints(args[0], args[1], ids))
		return NULL;
	if (count == 3)
		flags = PyLong_AsUnsignedLongMask(args[2]);
	if (flags == (unsigned long)-1 && PyErr_Occurred())
		return NULL;
	record_write(&thread_state()->record, ids, (uint8_t)flags);
	Py_RETURN_NONE;
}

static PyObject *clear(PyObject *module, PyObject *ignored)
{
	(void)module;
	(void)ignored;
	record_clear(&thread_state()->record);
	Py_RETURN_NONE;
}

static PyObject *published(PyObject *module, PyObject *ignored)
{
	const struct record *record = &thread_state()->record;

	(void)module;
	(void)ignored;
	if (!record->valid)
		Py_RETURN_NONE;
	return Py_BuildValue("y#y#i", (const char *)record->ids, (Py_ssize_t)TRACE_ID_SIZE,
			     (const char *)record->ids + TRACE_ID_SIZE, (Py_ssize_t)SPAN_ID_SIZE, record->trace_flags);
}

static PyObject *ended(PyObject *module, PyObject *span_context)
{
	struct record *record = &thread_state()->record;
	uint8_t ids[IDS_SIZE];
	uint8_t flags;
	int local = span_context_ids(span_context, ids, &flags);

	(void)module;
	if (local < 0)
		return NULL;
	if (local && record->valid && !memcmp(record->ids, ids, IDS_SIZE))
		record_clear(record);
	Py_RETURN_NONE;
}

static PyObject *follow(PyObject *module, PyObject *args)
{
	PyObject *variable, *span_key, *non_recording, *on_first_span, *on_greenlets;

	(void)module;
	if (!PyArg_ParseTuple(args, "O!UO!OO:follow", &PyContextVar_Type, &variable, &span_key, &PyType_Type,
			      &non_recording, &on_first_span, &on_greenlets))
		return NULL;
	if (follow_start(variable, span_key, non_recording, on_first_span, on_greenlets))
		return NULL;
	return PyUnicode_FromString(HAVE_CONTEXT_WATCHER ? "context watcher" : "Context.run");
}

static PyObject *unfollow(PyObject *module, PyObject *ignored)
{
	(void)module;
	(void)ignored;
	follow_stop();
	Py_RETURN_NONE;
}

static PyObject *synchronize(PyObject *module, PyObject *ignored)
{
	(void)module;
	(void)ignored;
	if (follow_active() && follow_sync())
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *counts(PyObject *module, PyObject *ignored)
{
	(void)module;
	(void)ignored;
	return Py_BuildValue("{s:K,s:K,s:K,s:I}", "stale", follow_counts.stale, "failures", follow_counts.failures,
			     "unfollowed", follow_counts.unfollowed, "slots", intercept_slots());
}

static PyObject *publish_process(PyObject *module, PyObject *payload)
{
	int error;

	(void)module;
	if (!PyBytes_Check(payload)) {
		PyErr_SetString(PyExc_TypeError, "the payload is bytes");
		return NULL;
	}
	error = process_publish(PyBytes_AS_STRING(payload), (size_t)PyBytes_GET_SIZE(payload));
	if (error) {
		errno = error;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	Py_RETURN_NONE;
}

static PyObject *withdraw_process(PyObject *module, PyObject *ignored)
{
	(void)module;
	(void)ignored;
	process_withdraw();
	Py_RETURN_NONE;
}

PyDoc_STRVAR(publish_doc, "publish(trace_id, span_id, trace_flags=0, /)\n--\n\n"
	"Make a span this thread's. OverflowError: an id is negative or too large.");
PyDoc_STRVAR(clear_doc, "clear()\n--\n\nMake this thread spanless.");
PyDoc_STRVAR(published_doc, "published()\n--\n\n"
	"Trace id, span id and trace flags as a reader of this thread sees them; None when there is no span.");
PyDoc_STRVAR(ended_doc, "ended(span_context, /)\n--\n\nClear the record if it shows this very span.");
PyDoc_STRVAR(follow_doc, "follow(variable, span_key, non_recording_span, on_first_span, on_greenlets, /)\n--\n\n"
	"From now on the record follows a context variable: on all threads, through every switch of context.\n\n"
	"`variable` holds opentelemetry's Context, a dict; `span_key` is the key of the current span in it. Spans\n"
	"of the class `non_recording_span` count as current although they do not record. `on_first_span` is\n"
	"called once, with the first recording span that is published; `on_greenlets` on each thread that\n"
	"publishes, once the process has greenlets. The answer is how switches are noticed: \"context watcher\"\n"
	"or \"Context.run\". RuntimeError: contextvars is not as CPython ships it, or no watcher is free.");
PyDoc_STRVAR(unfollow_doc, "unfollow()\n--\n\nUndo follow(); this thread's record is cleared.");
PyDoc_STRVAR(attach_doc, "attach(context, /)\n--\n\nSet the followed variable, and publish.");
PyDoc_STRVAR(detach_doc, "detach(token, /)\n--\n\nReset the followed variable, and publish what is current then.");
PyDoc_STRVAR(sync_doc, "sync(*ignored)\n--\n\n"
	"Publish what the current context says. What it is given is ignored, so that it can be a trace function.");
PyDoc_STRVAR(counts_doc, "counts()\n--\n\n"
	"What was not published since the module was loaded, and why; `slots` is how many call sites of\n"
	"PyContext_Enter and PyContext_Exit lead here now.");
PyDoc_STRVAR(publish_process_doc, "publish_process(payload, /)\n--\n\n"
	"Publish a serialized ProcessContext (OTEP 4719), or replace the published one. OSError: no memory could\n"
	"be mapped for it.");
PyDoc_STRVAR(withdraw_process_doc, "withdraw_process()\n--\n\nUnmap what publish_process() mapped.");

static PyMethodDef methods[] = {
	{"publish", (PyCFunction)(void (*)(void))publish, METH_FASTCALL, publish_doc},
	{"clear", clear, METH_NOARGS, clear_doc},
	{"published", published, METH_NOARGS, published_doc},
	{"ended", ended, METH_O, ended_doc},
	{"follow", follow, METH_VARARGS, follow_doc},
	{"unfollow", unfollow, METH_NOARGS, unfollow_doc},
	{"attach", follow_attach, METH_O, attach_doc},
	{"detach", follow_detach, METH_O, detach_doc},
	{"sync", synchronize, METH_VARARGS, sync_doc},
	{"counts", counts, METH_NOARGS, counts_doc},
	{"publish_process", publish_process, METH_O, publish_process_doc},
	{"withdraw_process", withdraw_process, METH_NOARGS, withdraw_process_doc},
	{NULL, NULL, 0, NULL},
};

static void free_module(void *module)
{
	(void)module;
	if (follow_active()) /* and not the copy that a subinterpreter was refused */
		follow_stop();
}

/* A subinterpreter has its own opentelemetry and its own contexts, but shares threads, and so records, with the
 * others: it is refused.
 */
static int execute(PyObject *module)
{
	static bool prepared;
	int error = 0;

	(void)module;
	if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
		PyErr_SetString(PyExc_ImportError,
				"otel_bridge.context follows the main interpreter only, this is a subinterpreter");
		return -1;
	}
	if (!prepared && !(error = records_prepare()) && !(error = process_prepare()))
		prepared = true;
	if (error) {
		errno = error;
		PyErr_SetFromErrno(PyExc_OSError);
		return -1;
	}
	return 0;
}

static PyModuleDef_Slot slots[] = {
	{Py_mod_exec, execute},
#if PY_VERSION_HEX >= 0x030C0000
	{Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
	{0, NULL},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "otel_bridge.context._record",
	.m_doc = "The thread's record: written, withdrawn, and kept in step with contextvars.",
	.m_methods = methods,
	.m_slots = slots,
	.m_free = free_module,
};

PyMODINIT_FUNC PyInit__record(void)
{
	return PyModuleDef_Init(&definition);
}

/* Two ways lead into a context before CPython 3.14, and both are taken here.
 *
 * - `Context.run`, which every callback of asyncio goes through: its method table is an array that CPython
 *   reads at each call, so one pointer in it is exchanged. Calls that are specialised, inlined or bound
 *   already read the same pointer.
 * - `PyContext_Enter` and `PyContext_Exit`, which C code may call: uvloop does for every callback, and
 *   CPython's own eager tasks. The loader put their addresses into a slot of each module that calls them;
 *   these slots are exchanged.
 *
 * Nothing is patched in code, and every exchange is undone by intercept_stop().
 */
#include "intercept.h"

#include <errno.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "follow.h"

#if !HAVE_CONTEXT_WATCHER

#if defined(__x86_64__)
#define R_JUMP_SLOT R_X86_64_JUMP_SLOT
#define R_GLOB_DAT R_X86_64_GLOB_DAT
#elif defined(__aarch64__)
#define R_JUMP_SLOT R_AARCH64_JUMP_SLOT
#define R_GLOB_DAT R_AARCH64_GLOB_DAT
#else
#error "x86-64 and AArch64 only"
#endif

typedef PyObject *(*run_function)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);

static PyMethodDef *run_method; /* Context.run's entry in CPython's table */
static run_function run_original;
static unsigned slots;
static unsigned long long modules_seen;

static PyObject *run(PyObject *context, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
	PyObject *result;

	if (!follow_active())
		return run_original(context, args, count, names);
	if (follow_enter(context))
		return NULL;
	result = run_original(context, args, count, names);
	if (follow_active() && follow_leave(context))
		Py_CLEAR(result);
	return result;
}

static int enter(PyObject *context)
{
	if (!follow_active())
		return PyContext_Enter(context);
	if (follow_enter(context))
		return -1;
	if (PyContext_Enter(context)) {
		follow_leave(context);
		return -1;
	}
	return 0;
}

static int leave(PyObject *context)
{
	int result = PyContext_Exit(context);

	/* An exception here would be taken for a context that could not be left. */
	if (!result && follow_active() && follow_leave(context))
		PyErr_WriteUnraisable(context);
	return result;
}

/* The entry of Context.run in CPython's table of methods; NULL, with an exception set, if it is not as known. */
static PyMethodDef *find_run(void)
{
	PyObject *descriptor = PyObject_GetAttrString((PyObject *)&PyContext_Type, "run");
	PyMethodDef *method = NULL;

	if (!descriptor)
		return NULL;
	if (Py_IS_TYPE(descriptor, &PyMethodDescr_Type))
		method = ((PyMethodDescrObject *)descriptor)->d_method;
	if (!method || method->ml_flags != (METH_FASTCALL | METH_KEYWORDS)) {
		PyErr_Format(PyExc_RuntimeError, "contextvars.Context.run is %R, not as CPython ships it", descriptor);
		method = NULL;
	}
	Py_DECREF(descriptor);
	return method;
}

static int exchange_run(void)
{
	run_method = find_run();
	if (!run_method)
		return -1;
	run_original = (run_function)(void (*)(void))run_method->ml_meth;
	__atomic_store_n(&run_method->ml_meth, (PyCFunction)(void (*)(void))run, __ATOMIC_RELEASE);
	return 0;
}

/* What a loaded module's dynamic section points to. */
struct module {
	ElfW(Addr) base;
	const ElfW(Rela) *tables[2];
	size_t counts[2];
	const ElfW(Sym) *symbols;
	const char *strings;
};

/* glibc relocates these entries in place, musl does not. */
static const void *address_in(const struct module *module, ElfW(Addr) value)
{
	return (const void *)(value >= module->base ? value : module->base + value);
}

static struct module module_of(const struct dl_phdr_info *info)
{
	struct module module = {.base = info->dlpi_addr};
	const ElfW(Dyn) *entry = NULL;

	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
	for (; entry && entry->d_tag != DT_NULL; entry++) {
		switch (entry->d_tag) {
		case DT_RELA:
			module.tables[0] = address_in(&module, entry->d_un.d_ptr);
			break;
		case DT_RELASZ:
			module.counts[0] = entry->d_un.d_val / sizeof(ElfW(Rela));
			break;
		case DT_JMPREL:
			module.tables[1] = address_in(&module, entry->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			module.counts[1] = entry->d_un.d_val / sizeof(ElfW(Rela));
			break;
		case DT_SYMTAB:
			module.symbols = address_in(&module, entry->d_un.d_ptr);
			break;
		case DT_STRTAB:
			module.strings = address_in(&module, entry->d_un.d_ptr);
			break;
		default:
			break;
		}
	}
	return module;
}

static bool lies_in(const struct dl_phdr_info *info, uintptr_t address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_LOAD && address >= start && address - start < segment->p_memsz)
			return true;
	}
	return false;
}

/* The loader made the page read-only when it was done (RELRO), unless the module asked for lazy binding. */
static bool is_relro(const struct dl_phdr_info *info, uintptr_t address)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + segment->p_vaddr;

		if (segment->p_type == PT_GNU_RELRO && address >= start && address - start < segment->p_memsz)
			return true;
	}
	return false;
}

static bool exchange_slot(const struct dl_phdr_info *info, uintptr_t *slot, uintptr_t value)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	void *page = (void *)((uintptr_t)slot & ~(size - 1));
	bool relro = is_relro(info, (uintptr_t)slot);

	if (relro && mprotect(page, size, PROT_READ | PROT_WRITE))
		return false;
	__atomic_store_n(slot, value, __ATOMIC_RELEASE);
	if (relro)
		mprotect(page, size, PROT_READ);
	return true;
}

struct exchange {
	bool undo;
	unsigned changed;
};

static void exchange_in(const struct dl_phdr_info *info, uintptr_t *slot, uintptr_t real, uintptr_t ours,
			struct exchange *exchange)
{
	uintptr_t now = *slot;
	/* Not bound yet: the slot leads to the module's own stub, which would ask the loader. */
	bool theirs = now == real || (now != ours && lies_in(info, now));

	if (exchange->undo ? now == ours : theirs)
		exchange->changed += exchange_slot(info, slot, exchange->undo ? real : ours);
}

static void exchange_module(const struct dl_phdr_info *info, struct exchange *exchange)
{
	struct module module = module_of(info);

	if (!module.symbols || !module.strings)
		return;
	for (int table = 0; table < 2; table++) {
		for (size_t i = 0; module.tables[table] && i < module.counts[table]; i++) {
			const ElfW(Rela) *relocation = &module.tables[table][i];
			unsigned type = ELF64_R_TYPE(relocation->r_info);
			uintptr_t *slot = (uintptr_t *)(module.base + relocation->r_offset);
			const char *name;

			if (type != R_JUMP_SLOT && type != R_GLOB_DAT)
				continue;
			name = module.strings + module.symbols[ELF64_R_SYM(relocation->r_info)].st_name;
			if (!strcmp(name, "PyContext_Enter"))
				exchange_in(info, slot, (uintptr_t)PyContext_Enter, (uintptr_t)enter, exchange);
			else if (!strcmp(name, "PyContext_Exit"))
				exchange_in(info, slot, (uintptr_t)PyContext_Exit, (uintptr_t)leave, exchange);
		}
	}
}

static int visit(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	modules_seen = info->dlpi_adds;
	if (!lies_in(info, (uintptr_t)visit))
		exchange_module(info, data);
	return 0;
}

static int visit_first(struct dl_phdr_info *info, size_t size, void *data)
{
	(void)size;
	*(unsigned long long *)data = info->dlpi_adds;
	return 1;
}

bool intercept_new_modules(void)
{
	struct exchange exchange = {0};
	unsigned long long now = 0;

	dl_iterate_phdr(visit_first, &now);
	if (now == modules_seen)
		return false;
	dl_iterate_phdr(visit, &exchange);
	slots += exchange.changed;
	return exchange.changed > 0;
}

int intercept_start(void)
{
	if (exchange_run())
		return -1;
	modules_seen = 0;
	intercept_new_modules();
	return 0;
}

void intercept_stop(void)
{
	struct exchange exchange = {.undo = true};

	dl_iterate_phdr(visit, &exchange);
	slots = 0;
	if (run_method)
		__atomic_store_n(&run_method->ml_meth, (PyCFunction)(void (*)(void))run_original, __ATOMIC_RELEASE);
	run_method = NULL;
}

unsigned intercept_slots(void)
{
	return slots;
}

#else

int intercept_start(void)
{
	return 0;
}

void intercept_stop(void)
{
}

bool intercept_new_modules(void)
{
	return false;
}

unsigned intercept_slots(void)
{
	return 0;
}

#endif

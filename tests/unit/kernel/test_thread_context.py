"""The symbol is found in any process that has it, however it was built, and nothing else is taken for it."""

from __future__ import annotations

import mmap
import os
import platform
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_bridge.elf.loaded import gnu_hash, sysv_hash
from otel_bridge.elf.memory import ProcessMemory, UnreadableError
from otel_bridge.kernel.thread_context import (
    ThreadContextError,
    ThreadContextLayout,
    ThreadContextLocator,
    locate,
)
from tests.support.thread_records import Published, ThreadReader, needs_x86_64

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTDATA = Path(__file__).parent / "testdata"

compiler = shutil.which("gcc")
musl_compiler = shutil.which("musl-gcc")

needs_compiler = pytest.mark.skipif(compiler is None, reason="gcc is not installed")
needs_musl = pytest.mark.skipif(
    musl_compiler is None, reason="musl-gcc is not installed: apt install musl-tools"
)


@dataclass(frozen=True)
class Build:
    """How a writer is built, and what the loader is expected to make of it.

    Attributes:
        flags: of the writer.
        loading: "dlopen", "linked" (a shared object from the start), or "executable".
        dynamic: whether the variable is reached through the DTV.
        program_flags: of the program.
        musl: with musl in place of glibc.
    """

    flags: tuple[str, ...]
    loading: str
    dynamic: bool
    program_flags: tuple[str, ...] = ()
    musl: bool = False


GNU2 = "-mtls-dialect=gnu2"
GNU = "-mtls-dialect=gnu"
BUILDS = {
    "descriptor, place to spare": Build((GNU2,), "dlopen", dynamic=False),
    "descriptor, no place to spare": Build((GNU2, "-DLARGE"), "dlopen", dynamic=True),
    "descriptor, from the start": Build((GNU2,), "linked", dynamic=False),
    "general-dynamic": Build((GNU,), "dlopen", dynamic=True),
    "general-dynamic, large": Build((GNU, "-DLARGE"), "dlopen", dynamic=True),
    "general-dynamic, from the start": Build((GNU,), "linked", dynamic=True),
    "only a sysv hash": Build((GNU, "-Wl,--hash-style=sysv"), "dlopen", dynamic=True),
    "stripped": Build((GNU2, "-s"), "dlopen", dynamic=False),
    "initial-exec": Build(("-ftls-model=initial-exec",), "linked", dynamic=False),
    "local-exec": Build((), "executable", dynamic=False, program_flags=("-rdynamic", "-pie")),
    "local-exec, fixed address": Build(
        (), "executable", dynamic=False, program_flags=("-rdynamic", "-no-pie")
    ),
    "musl, general-dynamic": Build((GNU,), "dlopen", dynamic=True, musl=True),
    "musl, general-dynamic, from the start": Build((GNU,), "linked", dynamic=True, musl=True),
    "musl, initial-exec": Build(("-ftls-model=initial-exec",), "linked", dynamic=False, musl=True),
}


def build(how: Build, folder: Path) -> list[str]:
    """The command that runs the program."""
    cc = musl_compiler if how.musl else compiler
    assert cc is not None
    program, writer = folder / "program", folder / "libwriter.so"
    sources = [str(TESTDATA / "program.c")]
    flags = ["-O1", "-Wall", "-Werror", "-pthread", *how.program_flags]
    if how.loading == "executable":
        sources.append(str(TESTDATA / "writer.c"))
    else:
        shared = [cc, "-O1", "-fPIC", "-shared", *how.flags, str(TESTDATA / "writer.c"), "-o", str(writer)]
        subprocess.run(shared, check=True)
    if how.loading == "dlopen":
        flags += ["-DDLOPEN", "-ldl"]
    if how.loading == "linked":
        flags += [str(writer), f"-Wl,-rpath,{folder}"]
    subprocess.run([cc, *sources, *flags, "-o", str(program)], check=True)
    return [str(program), str(writer)]


@contextmanager
def running(command: list[str]) -> Iterator[tuple[int, str]]:
    """A process that has said its first line and waits for its input to end."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{command} said nothing"
        yield process.pid, line


@needs_compiler
@needs_x86_64
@pytest.mark.parametrize(
    "how",
    [pytest.param(how, id=name, marks=[needs_musl] if how.musl else []) for name, how in BUILDS.items()],
)
def test_any_writer_is_found(how, tmp_path):
    """And each thread's record read; a thread that never published has none."""
    with running(build(how, tmp_path)) as (pid, line), ThreadReader(pid) as reader:
        tids = [int(tid) for tid in line.split()]
        assert bool(reader.layout.module) is how.dynamic
        assert reader.layout.dtv_stride == (8 if how.musl else 16)
        expected = {tid: Published(number + 1, number + 101, 1) for number, tid in enumerate(tids)}
        expected[tids[-1]] = None
        expected[pid] = None
        assert reader.all() == expected


PYTHON = "import sys, os; {code}; print(flush=True); sys.stdin.read()"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", PYTHON.format(code=code)]


def test_a_process_without_the_symbol_has_no_layout():
    """Most processes."""
    with running(python("pass")) as (pid, _):
        assert locate(pid) is None


def test_our_own_writer_is_found():
    """It is loaded when the package is imported, before anything is published."""
    pytest.importorskip("otel_bridge.context._record", reason="the C extension was not built")
    with running(python("import otel_bridge.context")) as (pid, _):
        layout = locate(pid)
        assert layout is not None
        assert "/otel_bridge/context/_record." in layout.path


@needs_compiler
def test_ours_is_taken_before_others(tmp_path):
    """A tracer's library carries the symbol also when nobody turned its publishing on."""
    pytest.importorskip("otel_bridge.context._record", reason="the C extension was not built")
    _, writer = build(
        Build((GNU2,) if platform.machine() == "x86_64" else (), "dlopen", dynamic=False), tmp_path
    )
    code = "import ctypes; ctypes.CDLL({!r}); import otel_bridge.context; ctypes.CDLL({!r})"
    with running(python(code.format(writer, writer))) as (pid, _):
        layout = locate(pid)
        assert layout is not None
        assert "/otel_bridge/context/_record." in layout.path


@needs_compiler
def test_a_deleted_module_is_found(tmp_path):
    """An upgrade replaces the file; the process keeps the old one."""
    _, writer = build(Build((), "dlopen", dynamic=False), tmp_path)
    code = f"import ctypes; ctypes.CDLL({writer!r}); os.unlink({writer!r})"
    with running(python(code)) as (pid, _):
        layout = locate(pid)
        assert layout is not None
        assert layout.path == f"{writer} (deleted)"


@needs_compiler
def test_data_of_that_name_is_no_thread_local(tmp_path):
    """The symbol must be of type TLS."""
    _, writer = build(Build(("-DNO_SYMBOL",), "dlopen", dynamic=False), tmp_path)
    with running(python(f"import ctypes; ctypes.CDLL({writer!r})")) as (pid, _):
        assert locate(pid) is None


@needs_compiler
def test_a_file_that_is_only_read_is_no_module(tmp_path):
    """Tools map ELF files to look at them; no loader filled their slots."""
    _, writer = build(Build((), "dlopen", dynamic=False), tmp_path)
    code = f"import mmap; f = open({writer!r}, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)"
    with running(python(code)) as (pid, _), pytest.raises(ThreadContextError, match=r"libwriter\.so: its "):
        locate(pid)


@needs_compiler
def test_a_module_mapped_twice_is_found_where_it_was_loaded(tmp_path):
    """The other mapping does not stand in the way."""
    _, writer = build(Build((), "dlopen", dynamic=False), tmp_path)
    code = (
        f"import mmap, ctypes; f = open({writer!r}, 'rb'); "
        "a = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); "
        f"ctypes.CDLL({writer!r}); b = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)"
    )
    with running(python(code)) as (pid, _):
        layout = locate(pid)
        assert layout is not None
        assert layout.path == writer


def test_a_process_that_is_gone():
    """The caller drops it."""
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(ProcessLookupError):
        locate(process.pid)


def test_a_process_without_memory():
    """A zombie still has a folder in /proc."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        with pytest.raises(ProcessLookupError):
            locate(process.pid)
    finally:
        process.wait()


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> bytes:
    """A module that has the symbol."""
    if compiler is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("image")
    _, writer = build(Build((), "dlopen", dynamic=False), folder)
    return Path(writer).read_bytes()


def locate_in(content: bytes, folder: Path) -> ThreadContextLayout | None:
    """What is found in a process (this one) that maps a file with that content, and our own module aside."""
    file = folder / "module.so"
    file.write_bytes(content)
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as _mapped:
        return ThreadContextLocator().locate(os.getpid(), proc=_proc_with_only(file, folder))


def _proc_with_only(file: Path, folder: Path) -> Path:
    """A procfs that shows this process with one module."""
    process = folder / "proc" / str(os.getpid())
    process.mkdir(parents=True, exist_ok=True)
    lines = Path("/proc/self/maps").read_text().splitlines(keepends=True)
    (process / "maps").write_text("".join(line for line in lines if str(file) in line))
    if not (process / "mem").exists():
        (process / "mem").symlink_to("/proc/self/mem")
    return process.parent


def damaged(image: bytes) -> Iterator[bytes]:
    """A prime number of broken modules: cut, overwritten, and with absurd numbers in the headers."""
    for size in (1, 3, 7, 64, 65, 120, 500, 4096, 4097, 8191):
        yield image[:size]
    for step in range(211):
        broken = bytearray(image)
        at = step * 37 % len(image)
        broken[at : at + 8] = struct.pack("<Q", (1 << 64) - 1 - step)
        yield bytes(broken)
    for at in range(0, 1024, 8):
        for value in (0, 1, 1 << 31, 1 << 62, (1 << 64) - 1):
            broken = bytearray(image)
            broken[at : at + 8] = struct.pack("<Q", value)
            yield bytes(broken)


def test_a_malformed_module_breaks_nothing(image, tmp_path):
    """It is none, or its way cannot be told; never another error, never a hang, never a made-up place."""
    count = 0
    for broken in damaged(image):
        count += 1
        with suppress(ThreadContextError):
            assert locate_in(broken, tmp_path) is None
    assert count == 10 + 211 + 128 * 5


def test_memory_that_is_not_mapped_is_an_error():
    """Never zeros, never fewer bytes."""
    with ProcessMemory(os.getpid()) as memory:
        first = memory.mappings[0]
        assert memory.read(first.start, 16)
        for address in (0, 8, 1 << 62, 1 << 63, (1 << 64) - 8, -8):
            with pytest.raises(UnreadableError):
                memory.read(address, 8)
        assert memory.mapping_at(first.start) == first
        assert memory.mapping_at(first.start - 1) is None
        assert memory.mapping_at(1 << 62) is None


@pytest.mark.parametrize(
    ("name", "gnu", "sysv"),
    [(b"", 5381, 0), (b"printf", 0x156B2BB8, 0x77905A6), (b"exit", 0x7C967E3F, 0x6CF04)],
)
def test_hashes(name, gnu, sysv):
    """Values known from the ABI's literature."""
    assert gnu_hash(name) == gnu
    assert sysv_hash(name) == sysv

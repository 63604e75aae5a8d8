"""Addresses become names: of this very process, of files that hold garbage, and never too many."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import structlog

from otel_bridge.elf.file import ElfFile
from otel_bridge.elf.loaded import ElfError
from otel_bridge.events import COMMON, KernelEvents
from otel_bridge.kernel.kernel_symbols import MAX_FRAMES, KernelSymbols
from otel_bridge.kernel.records import SCHED_WAIT
from otel_bridge.kernel.stacks import (
    STACKS_PER_SECOND,
    TEXT_BYTES,
    StackNaming,
    Symbolizer,
    demangled,
)
from otel_bridge.model import KernelEventKind
from otel_bridge.testing import FakeClock
from tests.support.kernel import eventually
from tests.support.processes import needs_command

UNNAMED = KernelSymbols(Path("/dev/null"))


def address_of(name: str) -> int:
    """Of a function of the C library in this process."""
    value = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert value
    return value


def test_a_function_of_the_c_library_is_named():
    """The innermost frame is where it is; an outer one is where it returns to."""
    symbolizer = Symbolizer(FakeClock(), UNNAMED)
    place = address_of("getppid")
    first, second = symbolizer.text(os.getpid(), [place + 4, place + 5]).splitlines()
    assert first.startswith("getppid+0x4 (libc")
    assert second.startswith("getppid+0x4 (libc")


def test_what_has_no_name_is_said_as_a_place():
    """Nothing mapped there; a process that is gone."""
    symbolizer = Symbolizer(FakeClock(), UNNAMED)
    assert symbolizer.text(os.getpid(), [0x10]) == "0x10"
    assert symbolizer.text(2**22 + 1, [address_of("getppid")]).startswith("0x")


def test_of_several_names_the_public_one_is_shown():
    """The C library calls most functions by two or three."""
    text = Symbolizer(FakeClock(), UNNAMED).text(os.getpid(), [address_of("poll") + 4])
    assert text.startswith("poll+0x4 (libc")


def test_a_stack_ends_where_no_code_is():
    """Without frame pointers the walk goes on into data."""
    place = address_of("getppid")
    text = Symbolizer(FakeClock(), UNNAMED).text(os.getpid(), [place + 4, 0x10, place + 5])
    assert len(text.splitlines()) == 1


def test_a_stack_ends_where_the_text_is_full():
    """Whole frames, the innermost ones."""
    symbolizer = Symbolizer(FakeClock(), UNNAMED)
    text = symbolizer.text(os.getpid(), [address_of("getppid") + 5] * 200)
    assert len(text.encode()) <= TEXT_BYTES
    assert {line.partition("+")[0] for line in text.splitlines()[:1]} == {"getppid"}
    assert all(line.endswith(")") for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"_ZN14llama_kv_cache6seq_rmEiii", "llama_kv_cache::seq_rm(int, int, int)"),
        (b"_Znot_mangled", "_Znot_mangled"),
        (b"clock_nanosleep", "clock_nanosleep"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_names_are_shown_as_written(name, shown):
    """C++ ones demangled; whatever bytes a file has for a name."""
    assert demangled(name) == shown


@pytest.fixture
def program(tmp_path):
    """A program with a function of its own, and the same without symbols."""
    compiler = needs_command("cc", "gcc")
    (tmp_path / "p.c").write_text("int inner(void) { return 1; }\nint main(void) { return inner(); }\n")
    subprocess.run([compiler, "-O0", tmp_path / "p.c", "-o", tmp_path / "program"], check=True)
    subprocess.run([compiler, "-O0", "-s", tmp_path / "p.c", "-o", tmp_path / "stripped"], check=True)
    return tmp_path


def test_defined_is_not_asked_of_others(program):
    """An import has the name as well; a stripped file has not."""
    with ElfFile(str(program / "program")) as elf:
        assert elf.defines(b"inner")
        assert not elf.defines(b"__libc_start_main")
        assert not elf.defines(b"nner")  # the end of a name, unless somebody is called so
    with ElfFile(str(program / "stripped")) as elf:
        assert not elf.defines(b"inner")


def test_a_text_is_found_in_what_is_constant(program):
    """Also where two pieces that are read meet."""
    text = b"SSL for verify callback"
    with (program / "program").open("rb") as file:
        assert text not in file.read()
    with ElfFile(str(program / "program")) as elf:
        assert not elf.contains(text)
        assert elf.contains(b"\x7fELF")


@pytest.mark.parametrize("cut", [0, 10, 63, 64, 200, 5000])
def test_a_file_that_ends_too_early_is_refused(program, cut):
    """As an error, whatever is missing."""
    whole = (program / "program").read_bytes()
    (program / "cut").write_bytes(whole[:cut])
    with pytest.raises(ElfError), ElfFile(str(program / "cut")) as elf:
        elf.defines(b"inner")


def test_garbage_in_every_header_is_an_error_or_nothing(program):
    """Bytes turned round, one after the other, in the file header and around the section headers."""
    whole = (program / "program").read_bytes()
    sections = int.from_bytes(whole[40:48], "little")
    for place in (*range(4, 64), *range(sections, len(whole), 7)):
        broken = bytearray(whole)
        broken[place] ^= 0xFF
        (program / "broken").write_bytes(broken)
        try:
            with ElfFile(str(program / "broken")) as elf:
                elf.defines(b"inner")
                elf.contains(b"nothing of the kind")
        except ElfError:
            continue


def test_a_running_program_s_own_functions_are_named(program):
    """Through the table that a debugger reads."""
    source = program / "spin.c"
    source.write_text(
        "#include <stdio.h>\nint spin(void) { return getchar(); }\n"
        'int main(void) { printf("%p\\n", (void *)spin); fflush(stdout); return spin(); }\n'
    )
    subprocess.run(["cc", "-O0", source, "-o", program / "spin"], check=True)
    with subprocess.Popen(
        [program / "spin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        place = int(process.stdout.readline(), 16)
        assert Symbolizer(FakeClock(), UNNAMED).text(process.pid, [place + 4]) == "spin+0x4 (spin)"
        shutil.copy(program / "stripped", program / "other")
        process.communicate("\n")


KALLSYMS = """\
ffffffff81000000 T _stext
ffffffff81001000 t do_wait
ffffffff81001100 T schedule
ffffffff81001200 D a_variable
ffffffff81001300 T schedule_timeout
ffffffffc0000000 t read_page\t[ext4]
0000000000000000 A percpu

not a line at all
"""


@pytest.fixture
def kernel(tmp_path):
    """A kernel with a few functions."""
    (tmp_path / "kallsyms").write_text(KALLSYMS)
    made = KernelSymbols(tmp_path / "kallsyms")
    yield made
    made.close()


def test_functions_of_the_kernel_and_its_modules_are_named(kernel):
    """Without those that give the CPU away; data is no code, and nothing is told by a bare address."""
    stack = [0xFFFFFFFF81001310, 0xFFFFFFFF81001104, 0xFFFFFFFFC0000010, 0xFFFFFFFF81001020]
    assert kernel.frames(stack) == ["read_page+0x10 (ext4)", "do_wait+0x20 (kernel)"]
    assert kernel.frames([0xFFFFFFFF81001208]) == []  # what lies behind schedule, which ended long before
    assert kernel.frames([0x10, 0xFFFFFFFF81001300 + (1 << 16), (1 << 64) - 1]) == []


def test_a_stack_in_the_kernel_is_bounded(kernel):
    """The innermost functions."""
    assert kernel.frames([0xFFFFFFFF81001001] * 16) == ["do_wait+0x1 (kernel)"] * MAX_FRAMES


def test_a_kernel_that_hides_its_addresses_is_said_to(tmp_path):
    """As with kptr_restrict, or without the privilege; so is a table that is not there."""
    (tmp_path / "kallsyms").write_text("0000000000000000 T do_wait\n0000000000000000 T schedule\n")
    for path, reason in ((tmp_path / "kallsyms", "kptr_restrict"), (tmp_path / "nowhere", "No such file")):
        with structlog.testing.capture_logs() as lines:
            hidden = KernelSymbols(path)
            assert hidden.frames([0, 1, 0xFFFFFFFF81001000]) == []
            hidden.frames([1])
            hidden.close()
        [line] = lines
        assert reason in line["reason"]


def test_a_stack_goes_on_from_the_kernel_into_the_program(kernel):
    """The program called what waits."""
    symbolizer = Symbolizer(FakeClock(), kernel)
    text = symbolizer.text(os.getpid(), [address_of("getppid") + 4], [0xFFFFFFFF81001004])
    first, second = text.splitlines()
    assert first == "do_wait+0x4 (kernel)"
    assert second.startswith("getppid+0x4 (libc")


def waits(*durations, stack=True):
    """Long waits of this process."""
    records = np.zeros(len(durations), SCHED_WAIT)
    records["kind"], records["tgid"], records["duration"] = KernelEventKind.SCHED_WAIT, os.getpid(), durations
    if stack:
        records["user_stack"][:, 0] = address_of("getppid")
    return KernelEvents("sched", records)


@pytest.fixture
def naming():
    """What names stacks, and what came out of it."""
    out: list[KernelEvents] = []
    clock = FakeClock()
    stage = StackNaming(out.append, clock, Symbolizer(clock, UNNAMED))
    stage.start()
    yield stage, out, clock
    stage.stop()


def test_the_worst_waits_get_their_stack(naming):
    """As many as a second allows; the others go on at once, without addresses. None is lost."""
    stage, out, _ = naming
    stage.take(waits(*range(STACKS_PER_SECOND + 23)))
    assert len(out[0]) == 23
    assert out[0].records["duration"].max() == 22
    eventually("the others", lambda: len(out) == 2)
    assert set(out[1].records["duration"].tolist()) == set(range(23, STACKS_PER_SECOND + 23))
    assert all(stack.startswith(b"getppid+0x0 (libc") for stack in out[1].records["stack"].tolist())
    for events in out:
        assert "user_stack" not in (events.records.dtype.names or ())
        assert events.records.dtype.descr[: len(COMMON.descr)] == COMMON.descr


async def test_the_next_second_allows_as_many_again(naming):
    """And no more for having been quiet before."""
    stage, out, clock = naming
    await clock.advance(60)
    stage.take(waits(*range(STACKS_PER_SECOND)))
    stage.take(waits(1))
    await clock.advance(1)
    stage.take(waits(2))
    eventually("all", lambda: sum(map(len, out)) == STACKS_PER_SECOND + 2)
    named = [events for events in out if "stack" in (events.records.dtype.names or ())]
    assert [len(events) for events in named] == [STACKS_PER_SECOND, 1]


def test_settled_means_handed_on(naming):
    """A span is joined when all of its events are there, named ones as well."""
    stage, out, _ = naming
    for _ in range(20):
        stage.take(waits(1))
        stage.settle(10)
        assert sum(map(len, out)) == 1
        out.clear()


def test_a_wait_without_a_stack_goes_on_at_once(naming):
    """As with kernel.probes.sched.stacks: false."""
    stage, out, _ = naming
    stage.take(waits(1, 2, stack=False))
    assert [len(events) for events in out] == [2]


def test_what_waits_to_be_named_is_handed_on_at_the_end():
    """A bridge that stops loses no event."""
    out: list[KernelEvents] = []
    stage = StackNaming(out.append, FakeClock(), Symbolizer(FakeClock(), UNNAMED))
    stage.take(waits(1, 2, 3))
    stage.start()
    stage.stop()
    assert [len(events) for events in out] == [3]

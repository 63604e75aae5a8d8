"""BCC as a compiler: found among modules of its name, held to the right headers, its answers kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import structlog

from otel_bridge.errors import BridgeError
from otel_bridge.kernel import bcc
from otel_bridge.kernel.bcc import Cache, Compiler, Headers, Module
from otel_bridge.kernel.bcc_object import INSTRUCTION, MAP_NUMBERS, resolve
from otel_bridge.kernel.config import BccConfig, ProbesConfig
from otel_bridge.kernel.kernel_symbols import traced
from otel_bridge.kernel.probes import PROBES, user

RELEASE = "5.15.0-generic"
EXIT = bytes([0x95, 0, 0, 0, 0, 0, 0, 0])

COMPILING = """
class BPF:
    def __init__(self, text, cflags):
        print("what BCC prints does not disturb the answer")
        if "broken" in text:
            raise Exception("Failed to compile: error: use of undeclared identifier 'broken'")

    def dump_func(self, name):
        return {exit!r} * 3
"""


def install(directory: Path, text: str = "", *, version: str = "0.26.0") -> Path:
    """A module that looks like BCC's."""
    package = directory / "bcc"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    (package / "libbcc.py").touch()
    (package / "version.py").write_text(f"__version__ = '{version}'\n")
    return directory


def make_headers(build: Path, release: str) -> Path:
    """As much of a kernel's headers as is looked at."""
    path = build / "include/generated/utsrelease.h"
    path.parent.mkdir(parents=True)
    path.write_text(f'#define UTS_RELEASE "{release}"\n')
    return build


def test_the_system_s_module_is_found_and_the_index_s_is_not(tmp_path):
    """The index's "bcc" is another library: it has no binding to libbcc."""
    lattice = tmp_path / "lattice"
    (lattice / "bcc").mkdir(parents=True)
    (lattice / "bcc" / "__init__.py").touch()
    system = install(tmp_path / "system")
    assert bcc.find_module([lattice]) is None
    assert bcc.find_module([lattice, tmp_path / "nowhere", system]) == Module(system, "0.26.0")


def test_a_module_without_a_version_is_used_all_the_same(tmp_path):
    """It is only told."""
    (install(tmp_path) / "bcc" / "version.py").unlink()
    assert bcc.find_module([tmp_path]) == Module(tmp_path, "of unknown version")


def test_headers_are_looked_for_where_they_belong_or_are_said_to_be(tmp_path, monkeypatch):
    """The kernel's own archive comes last."""
    monkeypatch.setattr(bcc, "KHEADERS", tmp_path / "kheaders.tar.xz")
    assert bcc.find_headers(RELEASE, modules=tmp_path) is None
    (tmp_path / "kheaders.tar.xz").touch()
    assert bcc.find_headers(RELEASE, modules=tmp_path) == Headers(tmp_path / "kheaders.tar.xz", RELEASE)
    build = make_headers(tmp_path / RELEASE / "build", RELEASE)
    assert bcc.find_headers(RELEASE, modules=tmp_path) == Headers(build, RELEASE)
    other = make_headers(tmp_path / "other", "6.1.0")
    assert bcc.find_headers(RELEASE, str(other), tmp_path) == Headers(other, "6.1.0")
    assert bcc.find_headers(RELEASE, str(tmp_path / "nowhere"), tmp_path) is None


@pytest.mark.parametrize(
    ("module", "headers", "said"),
    [
        (
            None,
            Headers(Path("/h"), RELEASE),
            "BCC is not installed; mend with: apt-get install python3-bpfcc",
        ),
        (Module(Path("/m"), "0.26.0"), None, "no headers of this kernel (5.15.0-generic): none were found"),
        (Module(Path("/m"), "0.26.0"), Headers(Path("/h"), "6.1.0"), "those in /h are of 6.1.0; mend with"),
    ],
)
def test_what_is_lacking_is_said_with_what_mends_it(module, headers, said):
    """Headers of another kernel are as good as none."""
    assert said in bcc.lacking(module, headers, RELEASE)
    assert "linux-headers-$(uname -r)" in bcc.lacking(module, headers, RELEASE)


def test_headers_of_unknown_release_are_given_the_benefit_of_the_doubt():
    """Whoever packs them without utsrelease.h must be believed."""
    assert not bcc.lacking(Module(Path("/m"), "0.26.0"), Headers(Path("/h"), ""), RELEASE)


def test_tracepoints_are_told_from_the_kernel_s_symbols(tmp_path):
    """Whole names only, of modules as well."""
    kallsyms = tmp_path / "kallsyms"
    kallsyms.write_text(
        "0000000000000000 T __traceiter_sched_switch\n"
        "0000000000000000 t __pfx___traceiter_sched_wakeup\n"
        "0000000000000000 t __traceiter_nvme_sq\t[nvme]\n"
    )
    names = ["sched_switch", "sched_wakeup", "nvme_sq", "sched"]
    assert traced(names, kallsyms) == dict(zip(names, (True, False, True, False), strict=True))


def test_static_tracepoints_are_named_as_what_bcc_cannot_do():
    """One that is configured, and no other probe's."""
    functions = [
        {"name": "evict", "library": "x", "usdt": "a:b"},
        {"name": "plain", "library": "x", "symbol": "f"},
    ]
    config = ProbesConfig.model_validate({"user": {"functions": functions}})
    assert bcc.limits(user.PROBE, config).startswith("without evict: static tracepoints")
    assert not any(bcc.limits(probe, config) for probe in PROBES if probe is not user.PROBE)
    assert not bcc.limits(user.PROBE, ProbesConfig())


def test_what_is_kept_comes_back(tmp_path):
    """In a directory that it makes for itself."""
    cache = Cache(str(tmp_path / "made" / "here"))
    assert cache.load("tcp") is None
    cache.keep("tcp", b"code")
    assert cache.load("tcp") == b"code"
    assert [path.name for path in (tmp_path / "made" / "here").iterdir()] == ["tcp"]


@pytest.mark.parametrize("what", ["directory", "file"])
def test_what_others_can_write_is_not_believed(tmp_path, what):
    """The kernel runs it."""
    directory = tmp_path / "cache"
    cache = Cache(str(directory))
    cache.keep("tcp", b"code")
    (directory if what == "directory" else directory / "tcp").chmod(0o777)
    assert cache.load("tcp") is None


def test_a_link_is_not_followed(tmp_path):
    """Nor believed for the file it leads to."""
    directory = tmp_path / "cache"
    cache = Cache(str(directory))
    cache.keep("tcp", b"code")
    (directory / "sched").symlink_to(directory / "tcp")
    assert cache.load("sched") is None


def test_a_directory_that_does_not_let_is_said(tmp_path):
    """And costs only time."""
    (tmp_path / "file").touch()
    with structlog.testing.capture_logs() as lines:
        Cache(str(tmp_path / "file")).keep("tcp", b"code")
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        Cache(str(shared)).keep("tcp", b"code")
    assert [line["log_level"] for line in lines] == ["warning", "warning"]
    assert "can be written to by others" in lines[1]["error"]


def test_no_cache_keeps_nothing():
    """An empty path."""
    cache = Cache("")
    cache.keep("tcp", b"code")
    assert cache.load("tcp") is None


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """A compiler over a module that answers, in place of BCC's."""
    system = install(tmp_path / "system", COMPILING.format(exit=EXIT))
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "tcp.bpf.c").write_text("int on_one; int on_two;")
    (sources / "broken.bpf.c").write_text("broken")
    (sources / "common.h").write_text("one")
    monkeypatch.setattr(bcc, "SOURCES", sources)
    monkeypatch.setattr(bcc, "find_module", lambda: Module(system, "0.26.0"))
    monkeypatch.setattr(bcc, "fit", lambda *_: True)
    headers = make_headers(tmp_path / "headers", RELEASE)
    config = BccConfig(headers=str(headers), cache=str(tmp_path / "cache"))
    return lambda: Compiler(config)


def test_instructions_come_back_and_are_kept(compiler, tmp_path, monkeypatch):
    """The second start asks BCC nothing; another source does."""
    code = compiler().compile("tcp", ["one", "two"], {"counters": 1})
    assert set(code) == {"one", "two"}
    assert code["one"].dtype == INSTRUCTION
    assert code["one"].tobytes() == EXIT * 3
    monkeypatch.setattr(bcc, "_TIMEOUT", 0.0)
    assert compiler().compile("tcp", ["one", "two"], {"counters": 1})["two"].tobytes() == EXIT * 3
    (tmp_path / "sources" / "common.h").write_text("two")
    with pytest.raises(BridgeError, match="did not compile it in 0 s"):
        compiler().compile("tcp", ["one", "two"], {"counters": 1})


@pytest.mark.parametrize("content", [b"", b"{}", b'{"on_one": "not base64!"}', b'{"on_one": "AAAA"}', b"[1]"])
def test_what_was_kept_badly_is_compiled_anew(compiler, tmp_path, content):
    """A disk that was full, or a hand that was in it."""
    compiler().compile("tcp", ["one"], {})
    [kept] = (tmp_path / "cache").iterdir()
    kept.write_bytes(content)
    assert compiler().compile("tcp", ["one"], {})["one"].tobytes() == EXIT * 3
    assert json.loads(kept.read_bytes())


def test_what_bcc_says_is_the_reason(compiler, tmp_path):
    """Nothing is kept of a failure."""
    with pytest.raises(BridgeError, match=r"probe broken: BCC refused it: .*undeclared identifier 'broken'"):
        compiler().compile("broken", ["one"], {})
    assert not (tmp_path / "cache").exists()


def test_sources_that_are_not_built_are_named_with_what_builds_them(compiler):
    """They come with the objects."""
    with pytest.raises(BridgeError, match=r"nothing\.bpf\.c is not there; mend with: make -C bpf"):
        compiler().compile("nothing", ["one"], {})


def test_without_bcc_the_command_that_brings_it_is_named(monkeypatch):
    """Before anything is tried."""
    monkeypatch.setattr(bcc, "find_module", lambda: None)
    with pytest.raises(BridgeError, match="apt-get install python3-bpfcc"):
        Compiler(BccConfig())


def test_maps_numbers_become_descriptors_and_nothing_else_does():
    """Only in instructions that load a map; a number that happens to be as large stays."""
    code = np.zeros(5, INSTRUCTION)
    code["code"] = [0x18, 0, 0x18, 0x18, 0xB7]
    code["registers"] = [0x11, 0, 0x22, 0x03, 0x11]
    code["immediate"] = [MAP_NUMBERS + 1, 0, MAP_NUMBERS + 2, MAP_NUMBERS + 1, MAP_NUMBERS + 1]
    out = resolve(code, {1: 40, 2: 41})
    assert out["immediate"].tolist() == [40, 0, 41, MAP_NUMBERS + 1, MAP_NUMBERS + 1]
    assert code["immediate"][0] == MAP_NUMBERS + 1


def test_a_map_that_nobody_made_is_an_error():
    """Never another one's descriptor."""
    code = np.zeros(1, INSTRUCTION)
    code["code"], code["registers"], code["immediate"] = 0x18, 0x11, MAP_NUMBERS + 9
    with pytest.raises(KeyError):
        resolve(code, {1: 40})

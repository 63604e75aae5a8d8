"""BCC as a back end, for kernels that do not tell their types: finds it, has it compile, keeps what it gave.

The module `bcc` comes from the system's packages and never from the Python package index, whose `bcc` is
something else. It is imported by a process of its own alone (`bcc_compile`): it need not be importable here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import structlog
from pydantic import TypeAdapter

from otel_bridge.errors import BridgeError
from otel_bridge.kernel import bcc_compile
from otel_bridge.kernel.backend import built
from otel_bridge.kernel.bcc_object import INSTRUCTION, BccObject, map_numbers, programs_of
from otel_bridge.kernel.kernel_symbols import traced
from otel_bridge.kernel.probes import user
from otel_bridge.libbpf import BUILD_COMMAND, OBJECTS
from otel_bridge.libbpf.core_object import Object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from otel_bridge.kernel.config import BccConfig, ProbesConfig
    from otel_bridge.kernel.probes.base import Probe
    from otel_bridge.libbpf.library import Library

log = structlog.get_logger(__name__)

INSTALL = (
    "apt-get install python3-bpfcc linux-headers-$(uname -r) (Fedora: dnf install python3-bcc kernel-devel)"
)
SOURCES = OBJECTS / "source"
MODULES = Path("/lib/modules")
KHEADERS = Path("/sys/kernel/kheaders.tar.xz")

_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
DIRECTORIES = tuple(
    Path(directory)
    for directory in (
        "/usr/lib/python3/dist-packages",
        f"/usr/lib/{_PYTHON}/site-packages",
        f"/usr/lib64/{_PYTHON}/site-packages",
        f"/usr/local/lib/{_PYTHON}/site-packages",
        f"/usr/local/lib/{_PYTHON}/dist-packages",
    )
)
"""Where systems keep the Python modules of their packages; a virtual environment does not see them."""

_ANSWER = TypeAdapter(dict[str, str])
_TIMEOUT = 120.0
_COMPLAINT = 1000  # characters of what the compiler says that are passed on
_FOREIGN_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Module:
    """BCC's Python module.

    Attributes:
        directory: that it is imported from.
        version: of BCC.
    """

    directory: Path
    version: str


def find_module(directories: Iterable[Path] = DIRECTORIES) -> Module | None:
    """BCC's module, if the system has it: told from others of that name by its binding to libbcc."""
    for directory in directories:
        package = directory / "bcc"
        if (package / "libbcc.py").is_file():
            try:
                text = (package / "version.py").read_text()
            except OSError:
                text = ""
            match = re.search(r"""__version__\s*=\s*['"]([^'"]+)""", text)
            return Module(directory, match[1] if match else "of unknown version")
    return None


@dataclass(frozen=True, slots=True)
class Headers:
    """Headers of a kernel.

    Attributes:
        path: a directory, or the archive that the kernel itself brings.
        release: of the kernel that they belong to; empty when that cannot be told.
    """

    path: Path
    release: str


def find_headers(release: str, configured: str = "", modules: Path = MODULES) -> Headers | None:
    """The headers that BCC would compile with: those of the configuration, or where it looks itself."""
    build = Path(configured) if configured else modules / release / "build"
    try:
        text = (build / "include/generated/utsrelease.h").read_text()
    except OSError:
        return Headers(KHEADERS, release) if not configured and KHEADERS.exists() else None
    match = re.search(r'UTS_RELEASE\s+"([^"]+)"', text)
    return Headers(build, match[1] if match else "")


def fit(headers: Headers | None, release: str) -> bool:
    """Whether headers are there and of this kernel, as far as that can be told.

    Those of another kernel would compile without a word, and the probes read the wrong places of memory.
    """
    return headers is not None and headers.release in ("", release)


def lacking(module: Module | None, headers: Headers | None, release: str) -> str:
    """Why BCC cannot compile here; empty when it can."""
    if module is None:
        return f"BCC is not installed; mend with: {INSTALL}"
    if fit(headers, release):
        return ""
    found = f"those in {headers.path} are of {headers.release}" if headers else "none were found"
    return f"no headers of this kernel ({release}): {found}; mend with: {INSTALL}, or set kernel.bcc.headers"


def limits(probe: Probe, config: ProbesConfig) -> str:
    """What of a configured probe the BCC back end cannot do; empty when nothing."""
    static = [function.name for function in config.user.functions if function.usdt]
    if probe is not user.PROBE or not static:
        return ""
    return f"without {', '.join(static)}: static tracepoints (usdt) are attached by libbpf alone"


class Cache:
    """Compiled programs on disk.

    They are run by the kernel with all privileges, so a directory that others can write to is not used.

    Args:
        directory: made when it is not there; empty for no cache.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory) if directory else None

    def load(self, name: str) -> bytes | None:
        """What was kept under a name; None when nothing that can be trusted was."""
        if self._directory is None or not self._is_ours(self._directory):
            return None
        path = self._directory / name
        try:
            return path.read_bytes() if self._is_ours(path) else None
        except OSError:
            return None

    def keep(self, name: str, content: bytes) -> None:
        """Keep something; a directory that does not let is said in the log."""
        if self._directory is None:
            return
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours(self._directory):
                raise PermissionError(f"{self._directory} can be written to by others")
            draft = self._directory / f"{name}.{os.getpid()}"
            draft.write_bytes(content)
            draft.chmod(0o600)
            draft.replace(self._directory / name)
        except OSError as error:
            log.warning("what BCC compiled is not kept; set kernel.bcc.cache", error=str(error))

    @staticmethod
    def _is_ours(path: Path) -> bool:
        try:
            status = path.lstat()
        except OSError:
            return False
        return status.st_uid == os.geteuid() and not status.st_mode & _FOREIGN_WRITE


class Compiler:
    """Has BCC compile probes for the running kernel.

    Raises:
        BridgeError: BCC or the kernel's headers are not there.
    """

    def __init__(self, config: BccConfig) -> None:
        release = os.uname().release
        module, headers = find_module(), find_headers(release, config.headers)
        reason = lacking(module, headers, release)
        if reason:
            raise BridgeError(reason)
        assert module is not None
        assert headers is not None
        self.module = module
        self.headers = headers
        self._configured = config.headers
        self._cache = Cache(config.cache)
        self._done: dict[str, Mapping[str, NDArray[np.void]]] = {}

    def compile(
        self, probe: str, programs: list[str], numbers: Mapping[str, int]
    ) -> Mapping[str, NDArray[np.void]]:
        """The instructions of a probe's programs (dtype INSTRUCTION), by name.

        Raises:
            BridgeError: BCC refused; the text holds what it said.
        """
        if probe not in self._done:
            self._done[probe] = self._compile(probe, programs, numbers)
        return self._done[probe]

    def _compile(
        self, probe: str, programs: list[str], numbers: Mapping[str, int]
    ) -> Mapping[str, NDArray[np.void]]:
        job = self._job(probe, programs, numbers)
        kept = f"{probe}-{self._digest(job)}.json"
        answer = self._cache.load(kept)
        if answer is not None:
            try:
                return _parse(answer, programs)
            except (ValueError, KeyError) as error:
                log.warning("what BCC compiled was not kept whole", probe=probe, error=repr(error))
        began = time.monotonic()
        answer = self._run(probe, job)
        log.info("BCC compiled a probe", probe=probe, seconds=round(time.monotonic() - began, 1))
        self._cache.keep(kept, answer)
        return _parse(answer, programs)

    def _job(self, probe: str, programs: list[str], numbers: Mapping[str, int]) -> bytes:
        source = SOURCES / f"{probe}.bpf.c"
        if not source.exists():
            raise BridgeError(f"{source} is not there; mend with: {BUILD_COMMAND}")
        flags = ["-DOTEL_BRIDGE_BCC", f"-I{SOURCES}", f"-I{SOURCES}/common/bcc"]
        job = {
            "directory": str(self.module.directory),
            "source": source.read_text(),
            "flags": flags + [f"-DMAP_NUMBER_{name}={number}" for name, number in numbers.items()],
            "programs": [f"on_{name}" for name in programs],
        }
        return json.dumps(job).encode()

    def _digest(self, job: bytes) -> str:
        """Of all that decides about the instructions."""
        digest = hashlib.sha256(job)
        for header in sorted(SOURCES.rglob("*.h")):
            digest.update(header.read_bytes())
        configuration = self.headers.path / "include/generated/autoconf.h"
        if configuration.exists():
            digest.update(configuration.read_bytes())
        system = os.uname()
        digest.update(
            repr((self.module, self.headers, system.release, system.version, system.machine)).encode()
        )
        return digest.hexdigest()[:32]

    def _run(self, probe: str, job: bytes) -> bytes:
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        if self._configured:
            environment["BCC_KERNEL_SOURCE"] = self._configured
        command = [sys.executable, "-I", bcc_compile.__file__]
        try:
            # Our own script, with the interpreter that runs this.
            done = subprocess.run(  # noqa: S603
                command, input=job, capture_output=True, env=environment, timeout=_TIMEOUT, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BridgeError(f"probe {probe}: BCC did not compile it in {_TIMEOUT:.0f} s") from error
        if done.returncode:
            said = done.stderr.decode(errors="replace")
            errors = [line for line in said.splitlines() if "error" in line.lower()]
            raise BridgeError(f"probe {probe}: BCC refused it: {'; '.join(errors or [said])[:_COMPLAINT]}")
        return done.stdout


def _parse(answer: bytes, programs: list[str]) -> Mapping[str, NDArray[np.void]]:
    code = _ANSWER.validate_json(answer)
    return {
        name: np.frombuffer(base64.b64decode(code[f"on_{name}"], validate=True), INSTRUCTION)
        for name in programs
    }


class BccBackend:
    """See `backend.Backend`.

    Raises:
        BridgeError: BCC or the kernel's headers are not there.
    """

    def __init__(self, library: Library, config: BccConfig) -> None:
        self._library = library
        self._compiler = Compiler(config)
        log.info(
            "probes are compiled by BCC, which takes some seconds a probe the first time",
            version=self._compiler.module.version,
            headers=str(self._compiler.headers.path),
        )

    def tracepoints(self, names: Sequence[str]) -> dict[str, bool]:
        """See `Backend`."""
        return traced(names)

    def by_perf(self, config: ProbesConfig) -> bool:  # noqa: ARG002 (libbpf has other ways)
        """See `Backend`."""
        return True

    def accounts(self) -> bool:
        """Not: the headers tell nothing of the queues that have the scheduler's clock."""
        return False

    def prepare(self, probes: Iterable[Probe]) -> None:
        """Compile, as many at a time as there are CPUs."""
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(self._prepare, [probe for probe in probes if not probe.needs_libbpf]))

    def _prepare(self, probe: Probe) -> None:
        try:
            plan = Object(self._library, built(probe))
            try:
                self._compiler.compile(probe.name, programs_of(plan), map_numbers(plan))
            finally:
                plan.close()
        except BridgeError as error:
            # Comes again, and is told, when the probe is loaded.
            log.debug("a probe was not compiled", probe=probe.name, error=str(error))

    def open(self, probe: Probe) -> BccObject:
        """See `Backend`."""
        if probe.needs_libbpf:
            raise BridgeError(f"probe {probe.name} needs the libbpf back end: {probe.needs_libbpf}")
        return BccObject(self._library, built(probe), self._compiler.compile)

    def limits(self, probe: Probe, config: ProbesConfig) -> str:
        """See `Backend`."""
        return limits(probe, config)

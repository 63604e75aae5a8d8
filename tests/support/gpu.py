"""GPU tests: stand-in libraries built from C, and the scenarios that they play (tests/gpu/standin)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

STANDIN = Path(__file__).parents[1] / "gpu" / "standin"
SCENARIO = "STANDIN_GPU_SCENARIO"
_FLAGS = ("-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-fno-optimize-sibling-calls", "-pthread")
_LIBRARIES = (
    ("nvml.c", "libnvidia-ml.so.1", ()),
    ("cuda.c", "libcuda.so.1", ()),
    ("cudart.c", "libcudart.so.12", ("libcuda.so.1",)),
)


def build(directory: Path) -> Path:
    """The stand-in libraries in a directory, under the real ones' names."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    for source, name, needs in _LIBRARIES:
        libraries = [str(directory / need) for need in needs]
        command = [compiler, *_FLAGS, str(STANDIN / source), f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN"]
        subprocess.run([*command, "-o", str(directory / name), *libraries], check=True)
    return directory


class Scenario:
    """A scenario's file; writing it anew is seen by the libraries within 10 ms."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def play(self, *lines: str) -> None:
        """Play this from now on."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.path)


def gpu(uuid: str = "GPU-0", *, total: int = 81920, memory: str = "constant 40960") -> str:
    """A GPU of a scenario that reserves 640 MiB, with memory in MiB; more lines may follow it."""
    return f"gpu {uuid} {total} 640\nmemory {memory}"

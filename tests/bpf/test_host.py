"""The programs' logic on the host, against faked helpers: needs a C compiler, neither root nor a kernel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.kernel import ROOT
from tests.support.processes import needs_command

HERE = Path(__file__).parent
PROGRAMS = sorted(path.name for path in HERE.glob("test_*.c"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program, tmp_path):
    """With the address and undefined-behaviour sanitizers; the first failed check is shown with its place."""
    compiler = needs_command("cc", "gcc")
    binary = tmp_path / program.removesuffix(".c")
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover", "-Wall", "-Werror"]
    quiet = ["-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable"]
    include = [f"-I{HERE / 'fake'}", f"-I{HERE}", f"-I{ROOT}"]
    subprocess.run([compiler, *flags, *quiet, *include, HERE / program, "-o", binary], check=True)
    done = subprocess.run([binary], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) >= 10

"""What the demo says when something does not start, and what it leaves."""

from __future__ import annotations

import io
import sys
import time

import pytest
from rich.console import Console

from demo import places, programs
from demo.__main__ import explain
from demo.environments import Environment
from demo.errors import DemoError
from demo.programs import Program, free_ports, running


def test_a_program_that_ends_is_told_with_its_log(tmp_path):
    """Not a timeout, and not a stack trace."""
    program = Program(
        "bridge", [sys.executable, "-c", "raise SystemExit('no such key')"], tmp_path / "bridge.log"
    )
    with running(program), pytest.raises(DemoError) as raised:
        program.wait_until_ready("http://127.0.0.1:1/readyz")
    assert "bridge ended by itself with exit code 1" in str(raised.value)
    shown = Console(file=io.StringIO(), width=300)
    explain(shown, raised.value)
    text = shown.file.getvalue()
    assert "To mend it" in text
    assert str(tmp_path / "bridge.log") in text
    assert "no such key" in text


def test_a_program_that_never_answers_is_told(tmp_path, monkeypatch):
    """After a while."""
    monkeypatch.setattr(programs, "START_TIMEOUT", 0.2)
    program = Program(
        "engine", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "engine.log"
    )
    with running(program), pytest.raises(DemoError, match="did not answer at"):
        program.wait_until_ready("http://127.0.0.1:1/")
    with pytest.raises(DemoError, match="ended by itself"):
        program.check()


def test_a_program_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    """The demo never hangs at its end."""
    monkeypatch.setattr(programs, "STOP_TIMEOUT", 0.2)
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    program = Program("engine", [sys.executable, "-c", stubborn], tmp_path / "engine.log")
    while "up" not in program.log.read_text():
        time.sleep(0.01)
    program.stop()
    with pytest.raises(DemoError, match="exit code -9"):
        program.check()


def test_ports_are_different():
    """All at once, so that none is given twice."""
    assert len(set(free_ports(50))) == 50


def test_an_environment_is_named_after_its_requirements(tmp_path, monkeypatch):
    """A change of versions makes another one."""
    monkeypatch.setenv("OTEL_BRIDGE_CACHE", str(tmp_path / "cache"))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("a==1\n")
    first = Environment("client", requirements).directory
    requirements.write_text("a==2\n")
    second = Environment("client", requirements).directory
    assert first != second
    assert first.is_relative_to(tmp_path / "cache")


def test_an_environment_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    """And is made anew by the next try."""
    monkeypatch.setenv("OTEL_BRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("demo.environments.ROOT", tmp_path)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text(f"thing @ file://{tmp_path}/absent-1.0-py3-none-any.whl\n")
    environment = Environment("client", requirements)
    with pytest.raises(DemoError, match="could not be installed") as raised:
        environment.make()
    assert raised.value.log is not None
    assert "absent-1.0" in raised.value.log.read_text()
    assert not environment.ready


def test_only_the_last_runs_are_kept(tmp_path, monkeypatch):
    """The demo does not fill a disk."""
    monkeypatch.setattr(places, "RUNS", tmp_path / ".demo")
    for number in range(9):
        (tmp_path / ".demo" / f"2020010{number}-000000-1").mkdir(parents=True)
    newest = places.new_run()
    kept = sorted(path.name for path in (tmp_path / ".demo").iterdir())
    assert len(kept) == places.RUNS_KEPT
    assert newest.name in kept
    assert "20200108-000000-1" in kept

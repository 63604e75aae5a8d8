"""Which programs are loaded on which kernel."""

from __future__ import annotations

import pytest

from otel_bridge.kernel.config import ProbesConfig
from otel_bridge.kernel.loader import choose
from otel_bridge.kernel.probes import PROBES, block, is_wanted, sched
from otel_bridge.kernel.probes.base import Program

MAIN = Program("main", "new_tracepoint", "6.5", "exact latencies")
STAND_IN = Program("stand_in", "old_tracepoint", "5.5", "rough latencies", stands_in_for="main")
OTHER = Program("other", "other_tracepoint", "5.5", "ends")


@pytest.mark.parametrize(
    ("present", "loaded", "missing"),
    [
        ({"new_tracepoint", "old_tracepoint", "other_tracepoint"}, ["main", "other"], []),
        ({"new_tracepoint", "other_tracepoint"}, ["main", "other"], []),
        ({"old_tracepoint", "other_tracepoint"}, ["stand_in", "other"], []),
        ({"other_tracepoint"}, ["other"], ["main", "stand_in"]),
        ({"new_tracepoint"}, ["main"], ["other"]),
        (set(), [], ["main", "stand_in", "other"]),
    ],
)
def test_a_stand_in_is_loaded_only_where_it_is_needed(present, loaded, missing):
    """And is then missed only where both are."""
    programs = (MAIN, STAND_IN, OTHER)
    known = {program.tracepoint: program.tracepoint in present for program in programs}
    chosen, absent = choose(programs, known, accounts=True)
    assert [program.name for program in chosen] == loaded
    assert [program.name for program in absent] == missing


@pytest.mark.parametrize(
    ("accounts", "loaded"),
    [(True, ["sched_switch"]), (False, ["sched_switch_of_woken", "sched_wakeup"])],
)
def test_wakeups_are_looked_at_only_where_the_scheduler_does_not_account(accounts, loaded):
    """They are as many as switches. None is missed either way."""
    known = dict.fromkeys(("sched_switch", "sched_wakeup"), True)
    chosen, missing = choose(sched.PROBE.programs, known, accounts=accounts)
    assert [program.name for program in chosen] == loaded
    assert missing == []


@pytest.mark.parametrize("present", [{"move_a"}, {"move_b"}, {"move_a", "move_b"}])
def test_a_driver_that_is_not_loaded_is_not_missed(present):
    """No machine has every card."""
    programs = tuple(Program(name, f"move_{name}", "4.9", "moves", module=name) for name in "ab")
    known = {program.tracepoint: program.tracepoint in present for program in programs}
    chosen, missing = choose(programs, known, accounts=True)
    assert {program.tracepoint for program in chosen} == present
    assert missing == []


def test_a_probe_that_serves_others_is_loaded_for_them_only():
    """Stamping sockets costs on every send."""
    socket = next(probe for probe in PROBES if probe.name == "socket")
    assert is_wanted(socket, ProbesConfig())
    assert not is_wanted(socket, ProbesConfig.model_validate({"tcp": {"enabled": False}}))
    assert not is_wanted(block.PROBE, ProbesConfig.model_validate({"block": {"enabled": False}}))


def test_every_stand_in_names_a_program_of_its_probe():
    """A name misspelt would load both."""
    for probe in PROBES:
        names = {program.name for program in probe.programs}
        assert {program.stands_in_for for program in probe.programs} <= names | {""}

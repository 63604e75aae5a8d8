"""Gates with the capabilities of deploy/ and no others: they hold, and each that is missing is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from otel_bridge.libbpf import uprobe_multi
from tests.support.gates import service
from tests.support.processes import ROOT, needs_command

UNIT = ROOT / "deploy" / "systemd" / "otel-bridge-gates.conf"
CODE = """
import asyncio, json, sys
from tests.kernel.test_gate import Bridge, State
from tests.support.kernel import eventually
async def main():
    pins, pid, port = json.loads(sys.argv[1])
    allocations = {"library": "libc.so*", "functions": ["aligned_alloc"], "failed": 0}
    keeper = Bridge(pins, pid=pid, ports=[port], kills={"target": "llama", "allocations": allocations})
    await keeper.start()
    keeper.settle()
    try:
        keeper.turn(State.OPEN)
        print("shut", file=sys.stderr, flush=True)
        if sys.argv[2:]:
            eventually("they are counted", lambda: [one for one in keeper._attached.values() if one._watched])
            print("counted", file=sys.stderr, flush=True)
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
    sys.stdin.read()
    await keeper.stop(1.0)
asyncio.run(main())
"""


def capabilities() -> list[str]:
    """Those of the unit, as setpriv calls them."""
    (names,) = re.findall(r"^AmbientCapabilities=(.*)$", UNIT.read_text(), re.MULTILINE)
    return [name.removeprefix("CAP_").lower() for name in names.split()]


@contextmanager
def bridge(guarded, pins, held, *more):
    """A bridge with some capabilities and no others."""
    place = json.dumps([str(pins), guarded.pid, guarded.port])
    setpriv = [
        needs_command("setpriv", "util-linux"),
        "--bounding-set=-all," + ",".join(f"+{one}" for one in held),
    ]
    process = subprocess.Popen(
        [*setpriv, sys.executable, "-c", CODE, place, *more],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process.stderr
    process.communicate()
    assert process.returncode == 0


@pytest.mark.parametrize("missing", ["", "net_admin", "bpf", "perfmon", "sys_ptrace"])
def test_gates_hold_with_what_the_manifests_give(bpffs, missing):
    """All of them: the gate shuts. One less: it says what it lacks, and the service is let alone."""
    held = [name for name in capabilities() if name != missing]
    with service() as guarded, bridge(guarded, bpffs / f"gates-{missing or 'all'}", held) as says:
        said = says.readline()
        found = guarded.knock()
    if missing:
        assert said != "shut\n"
        assert any(word in said for word in ("EPERM", "EACCES", "CAP_SYS_PTRACE"))
        assert set(found) == {"admitted"}
    else:
        assert said == "shut\n"
        assert set(found) == {"refused"}


def test_failed_allocations_take_no_more(bpffs):
    """Where a probe is a link of its own kind. Some kernels let CAP_SYS_ADMIN alone put others into files."""
    held = capabilities() if uprobe_multi.available() else [*capabilities(), "sys_admin"]
    with service() as guarded, bridge(guarded, bpffs / "gates-allocations", held, "allocations") as says:
        assert [says.readline(), says.readline()] == ["shut\n", "counted\n"]

"""Gates with the capabilities of deploy/ and no others: they hold, and each that is missing is told."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.support.gates import service
from tests.support.processes import ROOT, needs_command

UNIT = ROOT / "deploy" / "systemd" / "otel-bridge-gates.conf"
CODE = """
import asyncio, json, sys
from tests.kernel.test_gate import Bridge, State
async def main():
    pins, pid, port = json.loads(sys.argv[1])
    keeper = Bridge(pins, pid=pid, ports=[port], kills={"target": "llama"})
    await keeper.start()
    keeper.settle()
    try:
        keeper.turn(State.OPEN)
        print("shut", file=sys.stderr, flush=True)
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


@pytest.mark.parametrize("missing", ["", "net_admin", "bpf", "perfmon", "sys_ptrace"])
def test_gates_hold_with_what_the_manifests_give(bpffs, missing):
    """All of them: the gate shuts. One less: it says what it lacks, and the service is let alone."""
    setpriv = needs_command("setpriv", "util-linux")
    held = [f"+{name}" for name in capabilities() if name != missing]
    pins = bpffs / f"gates-{missing or 'all'}"
    with service() as guarded:
        place = json.dumps([str(pins), guarded.pid, guarded.port])
        command = [setpriv, f"--bounding-set=-all,{','.join(held)}", sys.executable, "-c", CODE, place]
        bridge = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = bridge.stderr.readline()
        found = guarded.knock()
        bridge.communicate()
    if missing:
        assert said != "shut\n"
        assert any(word in said for word in ("EPERM", "EACCES", "CAP_SYS_PTRACE"))
        assert set(found) == {"admitted"}
    else:
        assert said == "shut\n"
        assert set(found) == {"refused"}
    assert bridge.returncode == 0

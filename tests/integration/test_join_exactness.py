"""Kernel events of known requests are on their spans: the bench in short, so that it stays so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.bench.join import machine
from tests.bench.join.exactness import LEVEL, SERVERS
from tests.support.kernel import ROOT, needs_bpf

REQUESTS = "16"


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_events_are_on_the_span_that_caused_them(server):
    """Of retransmits, handshakes, waits, disk reads and reclaims; 96 requests, 64 at once."""
    needs_bpf()
    if lacking := machine.lacking():
        pytest.skip(lacking)
    command = [sys.executable, "-m", "tests.bench.join", "exactness", "--no-results", "--json"]
    done = subprocess.run(
        [*command, "--servers", server, "--requests", REQUESTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["join.wrong"] == 0, done.stderr
    assert found[f"join.{server}.right"] >= LEVEL, done.stderr

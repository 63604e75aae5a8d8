"""Makes one request slow by losing its packets, and fetches the span that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from demo import spans
from demo.errors import DemoError
from demo.places import ROOT
from demo.slow.packets import lost, nft
from otel_bridge.findings import Verdict
from otel_bridge.kernel.config import KernelConfig
from otel_bridge.kernel.preflight import judge, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from demo.spans import RecordedSpan
    from demo.stack import Stack

LOST_FOR = 0.35
"""Seconds: TCP sends again after 0.2 s, which is lost as well, and then after 0.4 s more."""
TIMEOUT = 20.0
TRIES = 5
PROBES = ("tcp", "sched")


@dataclass(frozen=True)
class Story:
    """What came of it.

    Attributes:
        usual: seconds that the same request took before.
        span: the slow one, as it came out.
    """

    usual: float
    span: RecordedSpan


def missing(stack: Stack) -> list[tuple[str, str]]:
    """What this machine lacks, each with what mends it; nothing when the part can run."""
    lacks: list[tuple[str, str]] = []
    if os.geteuid() != 0:
        lacks.append(("root: loading programs into the kernel, losing packets", "sudo make demo"))
    if nft() is None:
        lacks.append(("nft, which loses the packets", "apt-get install nftables"))
    if lacks:
        return lacks
    loaded = _loaded_probes(stack)
    if all(loaded.get(name) for name in PROBES):
        return []
    report = judge(survey(), KernelConfig())
    lacks += [
        (f"probe {finding.subject}: {finding.found}", finding.mend or "otel-bridge doctor")
        for finding in report.probes
        if finding.subject in PROBES and finding.verdict is Verdict.MISSING
    ]
    return lacks or [(f"probe {name} is not loaded", f"see {stack.run / 'bridge.log'}") for name in PROBES]


def run(stack: Stack, tell: Callable[[str, str], None]) -> Story:
    """One request as usual, one whose packets are lost; `tell` hears of each.

    Raises:
        DemoError: nothing came of it.
    """
    with _client(stack) as client:
        source = client.read()["port"]
        usual = _usual(client, stack)
        tell("a request as usual", milliseconds(usual))
        with lost(source, stack.addresses.engine):
            client.ask()
            time.sleep(LOST_FOR)
        slow = client.read()
        tell("the same, its packets lost for a moment", milliseconds(slow["seconds"]))
    return Story(usual, _span(slow["span_id"], stack))


def milliseconds(seconds: float) -> str:
    """For people."""
    return f"{seconds * 1e3:.0f} ms"


def _usual(client: _Client, stack: Stack) -> float:
    """How long the request takes, once the bridge has found the client: then its spans say so."""
    for _ in range(TRIES):
        client.ask()
        answer = client.read()
        if any(key.startswith("kernel.") for key in _span(answer["span_id"], stack).attributes):
            return float(answer["seconds"])
    raise DemoError(
        "the bridge did not find the client, which publishes its spans",
        "look at the bridge's log",
        stack.run / "bridge.log",
    )


def _span(span_id: str, stack: Stack) -> RecordedSpan:
    """A span as it came back from the bridge, once it has."""
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        stack.check()
        for span in spans.read(stack.run / "after.jsonl"):
            if span.span_id == span_id:
                return span
        time.sleep(0.1)
    raise DemoError(
        f"a span did not come back from the bridge within {TIMEOUT:g} s",
        "look at the bridge's log",
        stack.run / "bridge.log",
    )


class _Client:
    def __init__(self, process: subprocess.Popen[str], stack: Stack) -> None:
        self._process = process
        self._stack = stack

    def ask(self) -> None:
        """Have it make a request."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, Any]:
        """What it says next."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise DemoError("the slow client broke off", "its log says why", _log(self._stack))
        document: dict[str, Any] = json.loads(line)
        return document


@contextmanager
def _client(stack: Stack) -> Iterator[_Client]:
    command = [sys.executable, "-m", "demo.slow.client"]
    command += ["--server", stack.addresses.openai, "--otlp", stack.addresses.otlp]
    with (
        _log(stack).open("ab") as errors,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield _Client(process, stack)
        except BaseException:
            process.kill()
            raise


def _log(stack: Stack) -> Path:
    return stack.run / "client-slow.log"


def _loaded_probes(stack: Stack) -> dict[str, float]:
    """By name, as the bridge says it: 1 for those at work."""
    name = "otel_bridge_kernel_probe_loaded"
    with urllib.request.urlopen(stack.addresses.metrics, timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            sample.labels["probe"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == name
        }

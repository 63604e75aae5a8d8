"""`make demo`, end to end, and what came out of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from demo.spans import Kind, RecordedSpan, read
from tests.support.kernel import needs_bpf
from tests.support.processes import ROOT, Process, collector_binary, eventually, needs_command, running

pytestmark = [pytest.mark.slow, pytest.mark.collector, pytest.mark.timeout(900)]

SLOW = "client-slow"
ASKED = "You are brief." + "Grüße aus Köln: naïve 日本語 prompt"


@pytest.fixture(scope="module")
def demo() -> tuple[str, list[RecordedSpan]]:
    """What one run printed, and the spans that came out of the bridge."""
    collector_binary()
    ended = subprocess.run(
        [sys.executable, "-m", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout, read(run_of(ended.stdout) / "after.jsonl")


def run_of(output: str) -> Path:
    """The folder that a run says it left."""
    found = re.search(r"(\.demo/\S+)/before\.jsonl", output)
    assert found is not None, output
    return ROOT / found[1]


def first(spans: list[RecordedSpan], service: str, name: str) -> RecordedSpan:
    """The first span that the service's first exchange left: a chat in several scripts."""
    return next(span for span in spans if span.service == service and span.name == name)


@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("client-openai-v2", "chat tiny"),
        ("client-openai-v2-latest", "chat tiny"),
        ("client-openinference", "ChatCompletion"),
        ("client-openllmetry", "openai.chat"),
    ],
)
def test_every_client_speaks_one_vocabulary(demo, service, name):
    """Whichever library wrote it: the same names, values and types."""
    attributes = first(demo[1], service, name).attributes
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 12,
        "gen_ai.usage.input_tokens": 99,
        "gen_ai.usage.output_tokens": 12,
        "llm.model.id": "tiny",
    }
    assert {key: attributes.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("service", "name"),
    [
        ("client-openai-v2-latest", "chat tiny"),
        ("client-openinference", "ChatCompletion"),
        ("client-openllmetry", "openai.chat"),
    ],
)
def test_prompts_are_measured_and_gone(demo, service, name):
    """Bytes, not characters; and nothing of the text."""
    span = first(demo[1], service, name)
    assert span.attributes["llm.prompt.len"] == len(ASKED.encode())
    assert "Grüße" not in repr(span.attributes)


def test_vllms_spans_get_their_model(demo):
    """They carry none; the parent in the same trace, or the client's span, does."""
    clients = {
        span.trace_id for span in demo[1] if span.service.startswith("client-") and span.service != SLOW
    }
    spans = [span for span in demo[1] if span.name == "llm_request" and span.trace_id in clients]
    assert len(spans) == 4 * 13
    assert {span.attributes["llm.model.id"] for span in spans} == {"tiny"}
    assert all(isinstance(span.attributes["gen_ai.usage.input_tokens"], int) for span in spans)


def test_batch_size_comes_from_the_query(demo):
    """Where the caller said it; 1 elsewhere."""
    sizes = {
        span.name: span.attributes["llm.inference.batch_size"]
        for span in demo[1]
        if span.kind is Kind.SERVER and span.name.startswith("POST ")
    }
    assert sizes["POST /v1/completions"] == 2
    assert sizes["POST /v1/chat/completions"] == 1


def test_traffic_is_marked(demo):
    """Every span of the clients and the engine says that no user made it."""
    assert {span.attributes.get("user_agent.synthetic.type") for span in demo[1]} == {"test"}


def test_the_slow_request_names_its_cause(demo):
    """Segments sent again within it, and the wait for them, stamped with its ids in the kernel."""
    output, spans = demo
    needs_bpf()
    needs_command("nft", "nftables")
    slow = max((span for span in spans if span.service == SLOW), key=lambda span: span.duration_ns)
    assert slow.duration_ns > 500_000_000
    names = [event.name for event in slow.events]
    assert names.count("kernel.tcp.retransmit") >= 2
    assert slow.attributes["kernel.tcp.retransmits"] == names.count("kernel.tcp.retransmit")
    [wait] = [event for event in slow.events if event.name == "kernel.sched.wait"]
    assert wait.attributes["kernel.match"] == "thread"
    assert wait.attributes["kernel.duration"] > 0.8 * slow.duration_ns
    assert "libc" in wait.attributes["code.stacktrace"]
    for words in (
        "Why was it slow?",
        "kernel.tcp.retransmit",
        "match socket",
        "the slow request's span says",
    ):
        assert words in output


def test_an_overload_trips_the_breaker_and_it_closes_again(demo):
    """Cause, rule, breaker, refusals, recovery, in this order on one timeline."""
    output = demo[0]
    shown = output[output.index("Trip and recovery") :]
    lines = [line for line in shown[: shown.index("Checked on every span")].splitlines() if "●" in line]
    times = [float(line.split()[0]) for line in lines]
    assert times == sorted(times)
    story = "\n".join(lines)
    for words in (
        r"cause +overload: \d+ clients at once",
        r"rule +fires: EngineOverloaded: Five calls of engine",
        r"breaker +open: new requests for engine are refused",
        r"gateway +request refused: 429, Retry-After: \d+",
        r"breaker +half-open",
        r"recovery +first answer",
        r"breaker +closed: 5 of 5 probes passed",
    ):
        assert re.search(words, story), f"{words} in:\n{shown}"
    assert story.index("fires") < story.index("open:") < story.index("half-open") < story.index("closed")
    assert "an overload trips the breaker, and it closes again" in output
    if os.geteuid() == 0:
        assert re.search(r"kernel gate +first connection refused: by a reset", story), shown


def test_it_tells_what_happened_and_what_is_next(demo):
    """For a person who never saw it before."""
    output = demo[0]
    assert "✗" not in output
    for words in ("What came in and what came out", "OpenInference", "Kept", "Next", "make demo ARGS=--keep"):
        assert words in output


def test_keep_stays_up_and_leaves_nothing_behind(tmp_path):
    """With its addresses printed; SIGTERM ends everything that it started."""
    collector_binary()
    process = Process([sys.executable, "-m", "demo", "--keep", "--spans", "vllm"], tmp_path / "demo.log")
    with running(process):
        eventually("that it stays up", lambda: "Still up" in process.output(), timeout=300)
        found = re.search(r"OpenAI API\s+(http://\S+)", process.output())
        assert found is not None
        request = urllib.request.Request(
            f"{found[1]}/chat/completions",
            json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}).encode(),
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        children = children_of(process.pid)
        assert len(children) == 3
        assert process.stop() == 128 + signal.SIGTERM
    assert not [pid for pid in children if alive(pid)]


def children_of(parent: int) -> list[int]:
    """Processes started by another and still there."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in text.split()]


def alive(pid: int) -> bool:
    """Whether a process is there, zombies not counted."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text()

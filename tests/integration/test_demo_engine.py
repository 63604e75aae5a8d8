"""The demo's engine: OpenAI's API over llama.cpp, and the spans that it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from demo.environments import ENGINE
from otel_bridge.testing import attributes_of
from tests.support.ports import free_port
from tests.support.processes import ROOT, Process, eventually, running
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Grüße 日本"}], "max_tokens": 5}
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

pytestmark = pytest.mark.slow


class Served:
    """A running engine, and what it sent."""

    def __init__(self, port: int, sink: GrpcSink) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.sink = sink

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json", **(headers or {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            return refusal.code, json.load(refusal)

    def get(self, path: str) -> str:
        """The answer's text."""
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream, "[DONE]" last."""
        request = urllib.request.Request(self.url + path, json.dumps({**body, "stream": True}).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.headers.get_content_type() == "text/event-stream"
            lines = [line.decode().rstrip("\n") for line in answer if line.strip()]
        assert all(line.startswith("data: ") for line in lines)
        return [line if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


@contextmanager
def served(directory: Path, shape: str = "both") -> Iterator[Served]:
    """An engine with a model written for it."""
    ENGINE.make()
    port = free_port()
    with GrpcSink() as sink:
        command = [str(ENGINE.python), "-m", "demo.engine", "--port", str(port), "--spans", shape]
        command += ["--otlp", f"http://127.0.0.1:{sink.port}", "--models", str(directory)]
        process = Process(command, directory / "engine.log", {**os.environ, "PYTHONPATH": str(ROOT)})
        with running(process):
            process.wait_for_http(f"http://127.0.0.1:{port}/health")
            yield Served(port, sink)
            assert process.stop() == 0


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Iterator[Served]:
    """One engine for all that do not change it."""
    with served(tmp_path_factory.mktemp("engine")) as running_engine:
        yield running_engine


def test_the_model_file_is_the_same_each_time(tmp_path):
    """Random weights, but of one seed."""
    ENGINE.make()
    program = (
        "import sys, pathlib; from demo.engine import model_file; model_file.write(pathlib.Path(sys.argv[1]))"
    )
    for name in ("a.gguf", "b.gguf"):
        subprocess.run(
            [ENGINE.python, "-c", program, tmp_path / name], cwd=ROOT, check=True, capture_output=True
        )
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert (tmp_path / "a.gguf").read_bytes().startswith(b"GGUF")


def test_a_chat(engine):
    """Tokens are counted by the engine: one a byte of prompt, around it the template."""
    status, answer = engine.post("/v1/chat/completions", CHAT)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["choices"][0]["finish_reason"] in {"length", "stop"}
    longer = {**CHAT, "messages": [{"role": "user", "content": "Grüße 日本!!!"}]}
    more = engine.post("/v1/chat/completions", longer)[1]["usage"]["prompt_tokens"]
    assert more == answer["usage"]["prompt_tokens"] + 3


def test_a_seed_repeats_itself(engine):
    """Sampling is the engine's own."""
    answers = [engine.post("/v1/chat/completions", {**CHAT, "seed": 7})[1] for _ in range(2)]
    assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]


def test_choices_and_prompts_count_as_openai_counts(engine):
    """Two prompts by three choices: six choices in order, each prompt's tokens once, all answers' tokens."""
    one = engine.post("/v1/completions", {"model": "tiny", "prompt": "ab", "max_tokens": 1})[1]["usage"]
    body = {"model": "tiny", "prompt": ["ab", "abcd"], "n": 3, "max_tokens": 4, "logit_bias": [[2, False]]}
    status, answer = engine.post("/v1/completions", body)
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    assert answer["usage"]["prompt_tokens"] == 2 * one["prompt_tokens"] + 2
    assert answer["usage"]["completion_tokens"] == 6 * 4


def test_a_stream(engine):
    """Chunks with one id, then usage where asked for, then the end mark."""
    chunks = engine.stream("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    assert chunks.pop() == "data: [DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["usage"]["completion_tokens"] == CHAT["max_tokens"]
    assert chunks[-1]["choices"] == []
    without = engine.stream("/v1/chat/completions", CHAT)
    assert not any("usage" in chunk for chunk in without[:-1])


@pytest.mark.parametrize(
    ("path", "body", "refusal"),
    [
        ("/v1/chat/completions", {**CHAT, "model": "nope"}, (404, "not_found_error", "model")),
        ("/v1/chat/completions", {"model": "tiny"}, (400, "invalid_request_error", "messages")),
        ("/v1/chat/completions", {**CHAT, "messages": []}, (400, "invalid_request_error", "messages")),
        ("/v1/chat/completions", {**CHAT, "stream": True, "n": 2}, (400, "invalid_request_error", "n")),
        ("/v1/chat/completions", {**CHAT, "temperature": "warm"}, (400, "invalid_request_error", None)),
        ("/v1/completions", {"model": "tiny", "prompt": 7}, (400, "invalid_request_error", "prompt.str")),
        ("/v1/completions", b"{not json", (400, "invalid_request_error", None)),
    ],
)
def test_refusals_are_openais(engine, path, body, refusal):
    """Status, and an error object with message, type, param and code."""
    status, answer = engine.post(path, body)
    assert (status, answer["error"]["type"], answer["error"]["param"]) == refusal
    assert answer["error"]["message"]
    assert answer["error"]["code"] == status


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context_is_refused(engine, stream):
    """By its own status, also when it would have been streamed."""
    body = {**CHAT, "messages": [{"role": "user", "content": "x" * 2000}], "stream": stream}
    status, answer = engine.post("/v1/chat/completions", body)
    assert status == 400
    assert answer["error"]["type"] == "exceed_context_size_error"


def test_embeddings(engine):
    """One vector for each input."""
    status, answer = engine.post("/v1/embeddings", {"model": "tiny", "input": ["a", "b"]})
    assert status == 200
    assert [len(item["embedding"]) for item in answer["data"]] == [64, 64]


def test_a_client_that_leaves_frees_its_slot(engine):
    """As many abandoned streams as there are slots, and the next request is still answered."""
    for _ in range(6):
        body = json.dumps({**CHAT, "max_tokens": 900, "stream": True, "logit_bias": [[2, False]]}).encode()
        answer = urllib.request.urlopen(
            urllib.request.Request(f"{engine.url}/v1/chat/completions", body), timeout=30
        )
        answer.readline()
        answer.close()
    assert engine.post("/v1/chat/completions", CHAT)[0] == 200
    eventually("idle slots", lambda: "llamacpp:requests_processing 0" in engine.get("/metrics"))


def test_both_shapes_share_the_callers_trace(engine):
    """From traceparent to the HTTP server's span to vLLM's; header, query and body are captured."""
    headers = {"traceparent": TRACEPARENT, "x-model-id": "tiny", "baggage": "user_agent.synthetic.type=test"}
    status, answer = engine.post("/v1/chat/completions?batch_size=2", CHAT, headers)
    assert status == 200

    def spans_of_trace() -> dict[str, Any]:
        found = {span.name: span for span in engine.sink.spans() if span.trace_id.hex() == TRACEPARENT[3:35]}
        return found if len(found) == 2 else {}

    spans = eventually("both spans", spans_of_trace)
    http, llm = spans["POST /v1/chat/completions"], spans["llm_request"]
    assert (http.kind, llm.kind) == (2, 2)
    assert http.parent_span_id.hex() == TRACEPARENT[36:52]
    assert llm.parent_span_id == http.span_id
    attributes = attributes_of(http.attributes)
    assert attributes["http.request.header.x_model_id"] == ["tiny"]
    assert attributes["url.query"] == "batch_size=2"
    assert json.loads(str(attributes["http.request.body.content"])) == CHAT
    assert attributes["user_agent.synthetic.type"] == "test"
    vllm = attributes_of(llm.attributes)
    assert vllm["gen_ai.request.id"] == answer["id"]
    assert vllm["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert vllm["user_agent.synthetic.type"] == "test"
    assert not any("model" in key and "latency" not in key for key in vllm)
    queue, prefill, decode, e2e = (
        vllm[f"gen_ai.latency.{name}"]
        for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "e2e")
    )
    assert prefill > 0
    assert decode > 0
    assert queue + prefill + decode == pytest.approx(e2e)
    assert e2e <= (llm.end_time_unix_nano - llm.start_time_unix_nano) / 1e9


@pytest.mark.parametrize(
    ("shape", "names"), [("vllm", ["llm_request", "llm_request"]), ("http", ["POST /v1/completions"])]
)
def test_one_shape_alone(tmp_path, shape, names):
    """One span a prompt and none for HTTP, as vLLM; the HTTP server's only, as most servers."""
    with served(tmp_path, shape) as engine:
        engine.post("/v1/completions", {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 2})
        spans = eventually(
            "its spans", lambda: found if len(found := engine.sink.spans()) == len(names) else []
        )
        assert [span.name for span in spans] == names

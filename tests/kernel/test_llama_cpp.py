"""The functions that ship for llama.cpp, on the real engine: its decoding thread is not the request's."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from demo.environments import ENGINE
from demo.errors import DemoError
from otel_bridge.kernel.probes.user import preset
from otel_bridge.model import Match
from tests.support.kernel import Worker, followed, monitoring

WORKER = Path(__file__).parent / "engine_worker.py"
REQUESTS = range(1, 24)
TOKENS = 7


@pytest.fixture
def engine(publisher, tmp_path):
    """The engine in its own environment, a model loaded."""
    try:
        ENGINE.make()
    except DemoError as error:
        pytest.skip(f"needs the engine's packages: {error}")
    command = [str(ENGINE.python), str(WORKER), str(publisher), str(tmp_path / "model.gguf")]
    worker = Worker(publisher, command=command)
    yield worker
    worker.stop()


def of(monitor, engine, name):
    """The events of a function; others on this machine may run the same engine."""
    records = np.concatenate([batch.records for batch in monitor.events.batches if batch.probe == name])
    return records[records["tgid"] == engine.pid]


def spans(events, match):
    """How many events each span has; all must be found alike."""
    assert set(events["match"]) == {match}
    return Counter(int.from_bytes(bytes(event["span_id"]), "big") for event in events)


def test_queue_and_kv_cache_are_seen_on_the_request_they_serve(engine):
    """23 requests over four slots: each is queued, gets a slot, and has its slot's cache cleared, once."""
    with monitoring("user", user={"presets": ["llama.cpp"]}) as monitor:
        followed(monitor, engine.pid)
        assert monitor.covered("user") >= len(preset("llama.cpp"))
        answers = engine.do(*({"span": n, "tokens": TOKENS} for n in REQUESTS))
    once = dict.fromkeys(REQUESTS, 1)
    assert spans(of(monitor, engine, "llm.request.enqueue"), Match.THREAD) == once
    dequeued = of(monitor, engine, "llm.request.dequeue")
    assert spans(dequeued, Match.HAND_OVER) == once
    assert set(dequeued["slot"]) == {0, 1, 2, 3}
    assert len(set(dequeued["task"])) == len(REQUESTS)
    evicted = of(monitor, engine, "llm.kv_cache.evict")
    assert spans(evicted, Match.HAND_OVER) == once
    assert (evicted["stack_depth"] >= 1).all()
    # Every token but the last of an answer is fed back into the cache, on top of the prompts.
    generated = sum(answers)
    assert generated > len(REQUESTS)
    assert of(monitor, engine, "llm.kv_cache.append")["tokens"].sum() >= generated - len(REQUESTS)


def test_cells_that_are_given_back_are_counted(engine):
    """One request after the other, in one slot: each throws the answer of the one before away."""
    with monitoring("user", user={"presets": ["llama.cpp"]}) as monitor:
        followed(monitor, engine.pid)
        assert monitor.covered("user") >= len(preset("llama.cpp"))
        answers = [engine.do({"span": number, "tokens": TOKENS})[0] for number in REQUESTS]
    freed = of(monitor, engine, "llm.kv_cache.freed")
    assert len(set(freed["slot"])) == 1
    assert freed["evict_count"].tolist() == [0, *answers[:-1]]
    assert spans(freed, Match.HAND_OVER) == dict.fromkeys(REQUESTS, 1)
    assert (freed["stack_depth"] >= 1).all()
    waiting = of(monitor, engine, "llm.request.queue")
    assert waiting["queue_depth"].tolist() == waiting["new_tasks"].tolist() == [0] * len(REQUESTS)


def test_requests_that_wait_are_counted(engine):
    """More than there are slots, and each takes longer than it takes to send them all."""
    with monitoring("user", user={"presets": ["llama.cpp"]}) as monitor:
        followed(monitor, engine.pid)
        assert monitor.covered("user") >= len(preset("llama.cpp"))
        engine.do(*({"span": number, "tokens": 400} for number in REQUESTS))
    waiting = of(monitor, engine, "llm.request.queue")
    depths = waiting["queue_depth"] + waiting["new_tasks"]
    assert spans(waiting, Match.THREAD) == dict.fromkeys(REQUESTS, 1)
    assert (waiting["queue_depth"] >= 0).all()
    assert (waiting["new_tasks"] >= 0).all()
    assert 0 < depths.max() < len(REQUESTS)


def test_the_engine_has_every_symbol_of_the_preset(engine):
    """An upgrade that renames one is noticed here first."""
    library = next(ENGINE.directory.rglob("xllamacpp.abi3.so"))
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    present = {line.split()[-1] for line in symbols.splitlines()}
    assert {function.symbol for function in preset("llama.cpp")} <= present

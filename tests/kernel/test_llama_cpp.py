"""The functions that ship for llama.cpp, on the real engine: its decoding thread is not the request's."""

from __future__ import annotations

import json
import re
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
def start_engine(publisher, tmp_path):
    """Starts the engine in its own environment, a model loaded; its log goes to `engine.log`."""
    try:
        ENGINE.make()
    except DemoError as error:
        pytest.skip(f"needs the engine's packages: {error}")
    workers = []

    def start(**settings):
        arguments = [WORKER, publisher, tmp_path / "model.gguf", json.dumps(settings)]
        logging = ["sh", "-c", 'log=$1; shift; exec "$@" 2>"$log"', "sh", tmp_path / "engine.log"]
        command = [str(part) for part in (*logging, ENGINE.python, *arguments)]
        workers.append(Worker(publisher, command=command))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop()


@pytest.fixture
def engine(start_engine):
    """The engine as it is by default."""
    return start_engine()


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
    assert waiting["queue_depth"].tolist() == [0] * len(REQUESTS)
    # The engine's own, by which it goes on with its slots: a fast client finds it there still.
    assert set(waiting["new_tasks"]) <= {0, 1}


CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +\d+ layers, +\d+/(\d+) seqs\)")
F32 = 0  # enum ggml_type; by default the cache is of 16 bits


def said_of_a_cell(log):
    """By what the engine says of its cache when it makes it; each stream has that many cells."""
    [(size, cells, streams)] = CACHE.findall(log)
    return float(size) * 2**20 / (int(cells) * int(streams))


@pytest.mark.parametrize("settings", [{}, {"kv_unified": True}, {"cache_type_k": F32}], ids=str)
def test_bytes_that_are_given_back_are_those_of_the_engine(start_engine, tmp_path, settings):
    """By the model's parameters, and as the engine says itself: several streams, one, another type."""
    engine = start_engine(verbosity=5, **settings)
    with monitoring("user", user={"presets": ["llama.cpp"]}) as monitor:
        followed(monitor, engine.pid)
        assert monitor.covered("user") >= len(preset("llama.cpp"))
        answers = [engine.do({"span": number, "tokens": 3 + number % TOKENS})[0] for number in REQUESTS]
    [cell] = engine.do({"ask": "cell_bytes"})
    assert cell == said_of_a_cell((tmp_path / "engine.log").read_text(errors="replace"))
    [slot] = set(of(monitor, engine, "llm.request.dequeue")["slot"])
    freed = of(monitor, engine, "llm.kv_cache.freed")
    assert freed["freed_bytes"][freed["slot"] == slot].tolist() == [0, *(n * cell for n in answers[:-1])]
    # Where all slots share a stream, the engine clears those that are idle as well: of nothing.
    assert freed["freed_bytes"].sum() == sum(answers[:-1]) * cell
    assert not {"first_layer", "layers", "k_row"} & {*(freed.dtype.names or ())}


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

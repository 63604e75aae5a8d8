"""A real inference engine whose requests' threads publish spans; driven like worker.py.

Usage: engine_worker.py PUBLISHER MODEL SETTINGS; settings are the engine's own, as JSON. Reads from each line
of standard input a list of spans, sends one request for each at once, and answers how many tokens each gave.
Asked for "cell_bytes", it answers by the model's file what a token takes in the KV cache.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import gguf
import xllamacpp

from demo.engine import model_file


def cell_bytes(model: Path, params: xllamacpp.CommonParams) -> int:
    """A key and a value of each layer, of all its KV heads."""
    reader = gguf.GGUFReader(model)

    def number(name: str) -> int:
        return int(reader.get_field(name).contents())

    head = number("llama.embedding_length") // number("llama.attention.head_count")
    values = number("llama.block_count") * number("llama.attention.head_count_kv") * head
    sizes = [gguf.GGML_QUANT_SIZES[kind] for kind in (params.cache_type_k, params.cache_type_v)]
    return sum(values // block * size for block, size in sizes)


def main() -> None:
    """Serve until standard input ends."""
    publisher = ctypes.CDLL(sys.argv[1])
    model = Path(sys.argv[2])
    model_file.write(model)
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel, params.n_ctx = 4, 4096
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.fit_params = params.warmup = False
    params.verbosity = 1
    for name, value in json.loads(sys.argv[3]).items():
        setattr(params, name, value)
    server = xllamacpp.Server(params)

    def request(job: dict[str, Any]) -> int:
        if job.get("ask") == "cell_bytes":
            return cell_bytes(model, params)
        publisher.publish(bytes.fromhex(job["trace_id"]), bytes.fromhex(job["span_id"]))
        try:
            answer = server.handle_completions({"prompt": "the river is", "max_tokens": job["tokens"]})
        finally:
            publisher.clear()
        return int(answer["usage"]["completion_tokens"])

    sys.stdout.write(json.dumps({"pid": os.getpid()}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        jobs = json.loads(line)
        with ThreadPoolExecutor(len(jobs)) as threads:
            answers = list(threads.map(request, jobs))
        sys.stdout.write(json.dumps({"answers": answers}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

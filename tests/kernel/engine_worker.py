"""A real inference engine whose requests' threads publish spans; driven like worker.py.

Usage: engine_worker.py PUBLISHER MODEL. Reads from each line of standard input a list of spans, sends one
request for each at once, and answers how many tokens each gave.
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

import xllamacpp

from demo.engine import model_file


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
    server = xllamacpp.Server(params)

    def request(job: dict[str, Any]) -> int:
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

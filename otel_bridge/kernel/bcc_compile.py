"""Compiles one source with BCC, in a process of its own: python -I bcc_compile.py < job > programs.

LLVM keeps a quarter of a gigabyte and complains on the standard error: neither is for the bridge.
A job is JSON: `directory` that has the module `bcc`, `source`, `flags`, `programs` (names of functions). The
answer is JSON: the instructions of each, base64. This file imports nothing else of the bridge.
"""

from __future__ import annotations

import base64
import json
import os
import sys


def main() -> None:
    """Read a job, write what it gives."""
    job = json.load(sys.stdin)
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # What BCC prints belongs to the complaints.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.path.insert(0, job["directory"])
    from bcc import BPF  # noqa: PLC0415 (the path was not known before)

    module = BPF(text=job["source"], cflags=job["flags"])
    programs = {name: module.dump_func(name.encode()) for name in job["programs"]}
    with answer:
        json.dump({name: base64.b64encode(code).decode() for name, code in programs.items()}, answer)


if __name__ == "__main__":
    main()

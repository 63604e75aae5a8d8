"""Allocates by the stand-in for CUDA: `python -m tests.bench.join.allocations DIRECTORY`.

Each line of its input says how often; it answers with that number when it has.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from tests.support.gpu import SCENARIO, Scenario

_ROOM = 1 << 30
_SIZE = 4096


def main() -> None:
    """Obey until the input ends."""
    directory = Path(sys.argv[1])
    scenario = Scenario(directory / "scenario")
    scenario.play(f"cuda {_ROOM}")
    os.environ[SCENARIO] = str(scenario.path)
    cuda = ctypes.CDLL(str(directory / "libcuda.so.1"))
    address = ctypes.c_uint64()
    for line in sys.stdin:
        for _ in range(int(line)):
            if cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(_SIZE)) or cuda.cuMemFree_v2(
                address
            ):
                raise SystemExit("the stand-in refused an allocation")
        print(int(line), flush=True)


if __name__ == "__main__":
    main()

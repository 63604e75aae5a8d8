"""How fast a CPU is: a small piece of work, done over and over while something else is measured there.

python -m tests.bench.join.pace CPU

A virtual machine's CPU is twice as fast in one second as in the next, by what its neighbours do. Runs before
everything else on its CPU, for a few hundredths of the time. Answers each line of input with the seconds that
all pieces so far took, and how many there were.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

_EVERY = 0.004
_SIZE = 2000


class Pace:
    """The pieces so far."""

    def __init__(self) -> None:
        self._table = {number: number for number in range(_SIZE)}
        self._so_far = (0.0, 0)

    def go_on(self) -> None:
        """For ever."""
        while True:
            time.sleep(_EVERY)
            began = time.perf_counter()
            sum(self._table[key] for key in self._table)
            took, count = self._so_far
            self._so_far = (took + time.perf_counter() - began, count + 1)

    @property
    def so_far(self) -> tuple[float, int]:
        """Seconds and count."""
        return self._so_far


def main() -> None:
    """Until the input ends."""
    os.sched_setaffinity(0, {int(sys.argv[1])})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    pace = Pace()
    threading.Thread(target=pace.go_on, daemon=True).start()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(pace.so_far), flush=True)


if __name__ == "__main__":
    main()

"""Where the demo keeps things: what is costly to make outside the tree, what one run leaves in `.demo/`."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = ROOT / ".demo"
RUNS_KEPT = 5


def cache() -> Path:
    """The folder that collector-config/build.sh uses too."""
    if chosen := os.environ.get("OTEL_BRIDGE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-bridge"


def new_run() -> Path:
    """An empty folder for this run; of earlier ones the last few are kept."""
    RUNS.mkdir(exist_ok=True)
    for old in sorted(path for path in RUNS.iterdir() if path.is_dir())[: -RUNS_KEPT + 1]:
        shutil.rmtree(old, ignore_errors=True)
    run = RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    run.mkdir()
    return run

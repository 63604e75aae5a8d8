"""Settings of all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A timing is not a test, nor is how long a busy machine takes to make an example. What CI finds, everybody
# must find again.
settings.register_profile(
    "bridge", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bridge")

REAL = tuple(Path(__file__).parent / name for name in ("gpu", "integration", "kernel"))
RUNS_MORE = int(os.environ.get("RERUNS", "2"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests against the real kernel and real services run again when they fail, and the report says so (R).

    They share a machine with whatever else runs on it, some of which is hidden even from the kernel's own
    tracing. What is broken fails three times; `RERUNS=0` shows why something failed once.
    """
    for item in items:
        if any(item.path.is_relative_to(place) for place in REAL):
            item.add_marker(pytest.mark.flaky(reruns=RUNS_MORE))

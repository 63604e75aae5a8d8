"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# A timing is not a test; and what CI finds, everybody must find again.
settings.register_profile("bridge", deadline=None, derandomize=True)
settings.load_profile("bridge")

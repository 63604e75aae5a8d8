"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A timing is not a test, nor is how long a busy machine takes to make an example. What CI finds, everybody
# must find again.
settings.register_profile(
    "bridge", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("bridge")

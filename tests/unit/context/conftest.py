"""The publisher turned on, a real SDK, and what each thread publishes compared with the span it should."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider

from otel_bridge import context

record = pytest.importorskip("otel_bridge.context._record", reason="the C extension was not built")


@pytest.fixture(autouse=True)
def publishing():
    """On for the test, and gone after it."""
    status = context.install()
    assert status.publishing, status.problem
    yield
    context.uninstall()
    assert record.published() is None


@pytest.fixture
def provider():
    """An SDK that exports nothing."""
    provider = TracerProvider()
    yield provider
    provider.shutdown()


@pytest.fixture
def tracer(provider):
    """Makes recording spans."""
    return provider.get_tracer("test")

"""Publishes the active span of each thread, where a kernel program can read it (OTEP 4947).

    import otel_bridge.context

    otel_bridge.context.install()

Needs opentelemetry-api alone. See README.md.
"""

from otel_bridge.context.publisher import Status, install, status, uninstall

__all__ = ["Status", "install", "status", "uninstall"]

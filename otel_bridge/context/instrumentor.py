"""What `opentelemetry-instrument` loads: turns the publishing on with no change to the application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_bridge.context.publisher import install, status, uninstall

if TYPE_CHECKING:
    from collections.abc import Collection


class ThreadContextInstrumentor:
    """Has the methods of opentelemetry-instrumentation's BaseInstrumentor without needing that package."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """It instruments opentelemetry-api itself, which is here or nothing would call this."""
        return ()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether the active span is published."""
        return status().publishing

    def instrument(self, **_options: Any) -> None:
        """`install`; options of other instrumentors are of no use here."""
        install()

    def uninstrument(self, **_options: Any) -> None:
        """`uninstall`."""
        uninstall()

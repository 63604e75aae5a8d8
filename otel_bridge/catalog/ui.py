"""What the bridge's own pages keep."""

from __future__ import annotations

from otel_bridge.catalog.definitions import Kind, Metric

UI_KEPT_BYTES = Metric(
    "otel_bridge_ui_kept_bytes", Kind.GAUGE, "By", "Bytes of recent traces kept for the bridge's own pages."
)
UI_KEPT_TRACES = Metric(
    "otel_bridge_ui_kept_traces", Kind.GAUGE, "{trace}", "Recent traces kept for the bridge's own pages."
)

"""What the dashboards' variables can be: asked of Prometheus."""

from __future__ import annotations

from dashboards.queries.engines import ENGINES
from dashboards.queries.promql import SCOPE, AnyMetric, label, select
from otel_bridge import catalog


def _values(metric: AnyMetric, key: str, *scope: str) -> str:
    return f"label_values({select(metric, scope=scope)}, {label(metric, key)})"


JOB = _values(catalog.EXPORTER_QUEUE_CAPACITY, "job")
INSTANCE = _values(catalog.EXPORTER_QUEUE_CAPACITY, "instance", SCOPE[0])
SERVICE = _values(catalog.DERIVED_SPAN_CALLS, catalog.SERVICE_NAME.key, *SCOPE)
MODEL = _values(catalog.DERIVED_SPAN_CALLS, catalog.GEN_AI_REQUEST_MODEL.key, *SCOPE)
POD = _values(catalog.DERIVED_SPAN_CALLS, catalog.K8S_POD_NAME.key, *SCOPE)
GPU = _values(catalog.GPU_UP, "gpu_uuid", *SCOPE)
TARGET = _values(catalog.CONTROL_STATE, "target", *SCOPE)
ENGINE_JOBS = {engine: _values(metric, "job") for engine, metric in ENGINES.items()}

"""Requests, tokens, latency, errors: of services and models, made of spans."""

from __future__ import annotations

from dashboards.queries.promql import Query, highest, or_zero, quantile, rate
from otel_bridge import catalog

SERVICE = {"service_name": '=~"$service"'}
MODEL = {**SERVICE, "gen_ai_request_model": '=~"$model"'}
SERVER = {**SERVICE, "span_kind": '="SPAN_KIND_SERVER"'}
FAILED = {"status_code": '="STATUS_CODE_ERROR"'}
OUTPUT = {"gen_ai_token_type": '="output"'}
BY_SERVICE = (catalog.SERVICE_NAME.key,)
BY_MODEL = (catalog.SERVICE_NAME.key, catalog.GEN_AI_REQUEST_MODEL.key)
SERVICE_LEGEND = "{{service_name}}"
MODEL_LEGEND = "{{service_name}} {{gen_ai_request_model}}"

REQUESTS = Query(rate(catalog.DERIVED_SPAN_CALLS, by=BY_SERVICE, **SERVER), SERVICE_LEGEND)
ERROR_RATIO = Query(
    f"({rate(catalog.DERIVED_SPAN_CALLS, by=BY_SERVICE, **SERVER, **FAILED)}"
    f" or 0 * {rate(catalog.DERIVED_SPAN_CALLS, by=BY_SERVICE, **SERVER)})"
    f" / {rate(catalog.DERIVED_SPAN_CALLS, by=BY_SERVICE, **SERVER)}",
    SERVICE_LEGEND,
)
ERRORS_BY_TYPE = Query(
    or_zero(rate(catalog.DERIVED_CLIENT_DURATION, "count", ("error.type",), **MODEL, error_type='!=""')),
    "{{error_type}}",
)
TOKENS = Query(
    rate(catalog.DERIVED_SERVER_TOKENS, "sum", (*BY_MODEL, "gen_ai.token.type"), **MODEL),
    MODEL_LEGEND + " {{gen_ai_token_type}}",
)
CLIENT_TOKENS = Query(
    rate(catalog.DERIVED_CLIENT_TOKENS, "sum", (*BY_MODEL, "gen_ai.token.type"), **MODEL),
    MODEL_LEGEND + " {{gen_ai_token_type}}",
)


def _quantiles(metric: catalog.DerivedMetric, where: dict[str, str]) -> list[Query]:
    return [
        Query(quantile(q, metric, **where), f"P{round(q * 100)}", exemplars=q == 0.99)  # noqa: PLR2004 (one set of exemplars)
        for q in (0.5, 0.95, 0.99)
    ]


LATENCY = _quantiles(catalog.DERIVED_SPAN_DURATION, SERVER)
CALL_LATENCY = _quantiles(catalog.DERIVED_CLIENT_DURATION, MODEL)
FIRST_TOKEN = _quantiles(catalog.DERIVED_SERVER_FIRST_TOKEN, MODEL)
TOKEN_TIME = _quantiles(catalog.DERIVED_SERVER_TOKEN_TIME, MODEL)
QUEUE_TIME = _quantiles(catalog.DERIVED_SERVER_QUEUE, MODEL)
PROMPT_BYTES = _quantiles(catalog.DERIVED_PROMPT_BYTES, MODEL)
GPU_UTILIZATION = Query(highest(catalog.GPU_UTILIZATION_RATIO, ("gpu_uuid",)), "{{gpu_uuid}}")

REQUESTS_NOW = Query(rate(catalog.DERIVED_SPAN_CALLS, **SERVER), "requests")
ERROR_RATIO_NOW = Query(
    f"({rate(catalog.DERIVED_SPAN_CALLS, **SERVER, **FAILED)} or vector(0))"
    f" / {rate(catalog.DERIVED_SPAN_CALLS, **SERVER)}",
    "errors",
)
P99_NOW = Query(quantile(0.99, catalog.DERIVED_SPAN_DURATION, **SERVER), "P99")
FIRST_TOKEN_NOW = Query(quantile(0.95, catalog.DERIVED_SERVER_FIRST_TOKEN, **MODEL), "P95")
OUTPUT_TOKENS_NOW = Query(rate(catalog.DERIVED_SERVER_TOKENS, "sum", **MODEL, **OUTPUT), "tokens")

"""What inference engines say of themselves: their own metrics, scraped beside the bridge."""

from __future__ import annotations

from dashboards.queries.promql import Query, quantile, rate, summed
from otel_bridge import catalog

ENGINES = {
    "vllm": catalog.VLLM_RUNNING,
    "triton": catalog.TRITON_SUCCESS,
    "tgi": catalog.TGI_QUEUE,
    "sglang": catalog.SGLANG_TOKEN_USAGE,
}
"""For each engine's variable the metric that shows that it is there; the variable's values are its jobs."""

_MODEL = ("model_name",)
_VLLM = ('job=~"$vllm"',)
VLLM_REQUESTS = [
    Query(summed(catalog.VLLM_RUNNING, _MODEL, _VLLM), "{{model_name}} running"),
    Query(summed(catalog.VLLM_WAITING, _MODEL, _VLLM), "{{model_name}} waiting"),
]
VLLM_FINISHED = Query(
    rate(catalog.VLLM_REQUESTS, by=(*_MODEL, "finished_reason"), scope=_VLLM),
    "{{model_name}} {{finished_reason}}",
)
VLLM_TOKENS = [
    Query(rate(catalog.VLLM_PROMPT_TOKENS, by=_MODEL, scope=_VLLM), "{{model_name}} prompt"),
    Query(rate(catalog.VLLM_GENERATION_TOKENS, by=_MODEL, scope=_VLLM), "{{model_name}} generation"),
]
VLLM_LATENCY = [
    Query(quantile(0.95, metric, _MODEL, _VLLM), f"{{{{model_name}}}} {what}")
    for metric, what in (
        (catalog.VLLM_FIRST_TOKEN, "first token"),
        (catalog.VLLM_TOKEN_TIME, "between tokens"),
        (catalog.VLLM_QUEUE_TIME, "in queue"),
        (catalog.VLLM_DURATION, "in all"),
    )
]
VLLM_CACHE = [
    Query(summed(catalog.VLLM_KV_USAGE, _MODEL, _VLLM), "{{model_name}} KV cache in use"),
    Query(
        f"{rate(catalog.VLLM_PREFIX_HITS, by=_MODEL, scope=_VLLM)}"
        f" / ({rate(catalog.VLLM_PREFIX_QUERIES, by=_MODEL, scope=_VLLM)} > 0)",
        "{{model_name}} prefix hits",
    ),
]
VLLM_PREEMPTIONS = Query(rate(catalog.VLLM_PREEMPTIONS, by=_MODEL, scope=_VLLM), "{{model_name}}")

_TRITON = ('job=~"$triton"',)
_VERSION = ("model", "version")
TRITON_REQUESTS = [
    Query(rate(catalog.TRITON_SUCCESS, by=_VERSION, scope=_TRITON), "{{model}} {{version}} done"),
    Query(rate(catalog.TRITON_FAILURE, by=_VERSION, scope=_TRITON), "{{model}} {{version}} failed"),
]
_TRITON_DONE = rate(catalog.TRITON_SUCCESS, by=_VERSION, scope=_TRITON)
TRITON_TIME = [
    Query(
        f"{rate(metric, by=_VERSION, scope=_TRITON)} / ({_TRITON_DONE} > 0)",
        f"{{{{model}}}} {{{{version}}}} {what}",
    )
    for metric, what in ((catalog.TRITON_DURATION, "in all"), (catalog.TRITON_QUEUE_TIME, "in queue"))
]
TRITON_PENDING = Query(summed(catalog.TRITON_PENDING, _VERSION, _TRITON), "{{model}} {{version}}")

_TGI = ('job=~"$tgi"',)
TGI_REQUESTS = Query(rate(catalog.TGI_REQUESTS, scope=_TGI), "requests")
TGI_LATENCY = [
    Query(quantile(0.95, catalog.TGI_DURATION, scope=_TGI), "in all"),
    Query(quantile(0.95, catalog.TGI_TOKEN_TIME, scope=_TGI), "a token"),
]
TGI_WAITING = [
    Query(summed(catalog.TGI_QUEUE, scope=_TGI), "in queue"),
    Query(summed(catalog.TGI_BATCH, scope=_TGI), "in the batch"),
]

_SGLANG = ('job=~"$sglang"',)
SGLANG_TOKENS = [
    Query(rate(catalog.SGLANG_PROMPT_TOKENS, by=_MODEL, scope=_SGLANG), "{{model_name}} prompt"),
    Query(rate(catalog.SGLANG_GENERATION_TOKENS, by=_MODEL, scope=_SGLANG), "{{model_name}} generation"),
]
SGLANG_LATENCY = Query(
    quantile(0.95, catalog.SGLANG_FIRST_TOKEN, _MODEL, _SGLANG), "{{model_name}} first token"
)
SGLANG_CACHE = [
    Query(summed(catalog.SGLANG_TOKEN_USAGE, _MODEL, _SGLANG), "{{model_name}} KV cache in use"),
    Query(summed(catalog.SGLANG_CACHE_HITS, _MODEL, _SGLANG), "{{model_name}} prefix hits"),
]

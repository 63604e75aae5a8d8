"""Metrics of others that dashboards read: inference engines' own, and Prometheus's.

The names are theirs: vLLM 0.32 as recorded in tests/testdata/dashboards, Triton's metrics guide, TGI's
and SGLang's references. One that is renamed there is renamed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_bridge.catalog.definitions import Kind


@dataclass(frozen=True, slots=True)
class ForeignMetric:
    """One metric that another program exposes.

    Attributes:
        name: as Prometheus shows it, without a counter's `_total` where the program writes one.
        kind: counter, gauge or histogram.
        unit: UCUM.
        labels: those that dashboards group by.
        total: whether the counter's name ends in `_total`.
    """

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...] = ()
    total: bool = True


_VLLM = ("model_name",)
VLLM_RUNNING = ForeignMetric("vllm:num_requests_running", Kind.GAUGE, "{request}", _VLLM)
VLLM_WAITING = ForeignMetric("vllm:num_requests_waiting", Kind.GAUGE, "{request}", _VLLM)
VLLM_KV_USAGE = ForeignMetric("vllm:kv_cache_usage_perc", Kind.GAUGE, "1", _VLLM)
VLLM_PROMPT_TOKENS = ForeignMetric("vllm:prompt_tokens", Kind.COUNTER, "{token}", _VLLM)
VLLM_GENERATION_TOKENS = ForeignMetric("vllm:generation_tokens", Kind.COUNTER, "{token}", _VLLM)
VLLM_REQUESTS = ForeignMetric("vllm:request_success", Kind.COUNTER, "{request}", (*_VLLM, "finished_reason"))
VLLM_PREEMPTIONS = ForeignMetric("vllm:num_preemptions", Kind.COUNTER, "{preemption}", _VLLM)
VLLM_PREFIX_QUERIES = ForeignMetric("vllm:prefix_cache_queries", Kind.COUNTER, "{token}", _VLLM)
VLLM_PREFIX_HITS = ForeignMetric("vllm:prefix_cache_hits", Kind.COUNTER, "{token}", _VLLM)
VLLM_FIRST_TOKEN = ForeignMetric("vllm:time_to_first_token_seconds", Kind.HISTOGRAM, "s", _VLLM)
VLLM_TOKEN_TIME = ForeignMetric("vllm:inter_token_latency_seconds", Kind.HISTOGRAM, "s", _VLLM)
VLLM_DURATION = ForeignMetric("vllm:e2e_request_latency_seconds", Kind.HISTOGRAM, "s", _VLLM)
VLLM_QUEUE_TIME = ForeignMetric("vllm:request_queue_time_seconds", Kind.HISTOGRAM, "s", _VLLM)

_TRITON = ("model", "version")
TRITON_SUCCESS = ForeignMetric(
    "nv_inference_request_success", Kind.COUNTER, "{request}", _TRITON, total=False
)
TRITON_FAILURE = ForeignMetric(
    "nv_inference_request_failure", Kind.COUNTER, "{request}", _TRITON, total=False
)
TRITON_DURATION = ForeignMetric("nv_inference_request_duration_us", Kind.COUNTER, "us", _TRITON, total=False)
TRITON_QUEUE_TIME = ForeignMetric("nv_inference_queue_duration_us", Kind.COUNTER, "us", _TRITON, total=False)
TRITON_PENDING = ForeignMetric("nv_inference_pending_request_count", Kind.GAUGE, "{request}", _TRITON)

TGI_REQUESTS = ForeignMetric("tgi_request_count", Kind.COUNTER, "{request}", total=False)
TGI_DURATION = ForeignMetric("tgi_request_duration", Kind.HISTOGRAM, "s")
TGI_TOKEN_TIME = ForeignMetric("tgi_request_mean_time_per_token_duration", Kind.HISTOGRAM, "s")
TGI_QUEUE = ForeignMetric("tgi_queue_size", Kind.GAUGE, "{request}")
TGI_BATCH = ForeignMetric("tgi_batch_current_size", Kind.GAUGE, "{request}")

_SGLANG = ("model_name",)
SGLANG_PROMPT_TOKENS = ForeignMetric("sglang:prompt_tokens", Kind.COUNTER, "{token}", _SGLANG)
SGLANG_GENERATION_TOKENS = ForeignMetric("sglang:generation_tokens", Kind.COUNTER, "{token}", _SGLANG)
SGLANG_TOKEN_USAGE = ForeignMetric("sglang:token_usage", Kind.GAUGE, "1", _SGLANG)
SGLANG_CACHE_HITS = ForeignMetric("sglang:cache_hit_rate", Kind.GAUGE, "1", _SGLANG)
SGLANG_FIRST_TOKEN = ForeignMetric("sglang:time_to_first_token_seconds", Kind.HISTOGRAM, "s", _SGLANG)

PROMETHEUS_ALERTS = ForeignMetric(
    "ALERTS", Kind.GAUGE, "{alert}", ("alertname", "alertstate", "severity", "service_name")
)

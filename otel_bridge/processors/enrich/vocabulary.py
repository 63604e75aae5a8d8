"""GenAI names met in the wild, and the current ones that they stand for: data, no logic.

Current names are those of the GenAI semantic conventions. For times inside an inference server, which
these know as metrics only (`gen_ai.server.*`), the span attributes are our own, listed in `catalog`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from otel_bridge import catalog

if TYPE_CHECKING:
    from collections.abc import Mapping

ValueKind = Literal["string", "int", "double", "bool"]
Unit = Literal["s", "ms", "us", "ns"]

PER_SECOND: Mapping[str, float] = MappingProxyType({"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9})

MAX_TOKENS = 1_000_000_000
"""More tokens than any request has; a counter that overflowed or another unit lies above."""


@dataclass(frozen=True, slots=True)
class Old:
    """One attribute that means the same as a current one.

    Attributes:
        key: its key.
        path: where the value lies in it, when it holds JSON.
        unit: of a time.
        systems: units that differ where an integer was written by this system (value of gen_ai.system).
        words: from its values to the current ones; values that are not listed mean nothing.
        beside: only where one of these keys is on the same span: the key alone is too common a word.
        text_only: only where it is a string, for the same reason.
        conflicts: whether another value than the current one is a disagreement; a fallback is none.
        marks: whether it shows that a span is an LLM request.
    """

    key: str
    path: str = ""
    unit: Unit = "s"
    systems: Mapping[str, Unit] = field(default_factory=dict)
    words: Mapping[str, str] | None = None
    beside: tuple[str, ...] = ()
    text_only: bool = False
    conflicts: bool = True
    marks: bool = True


@dataclass(frozen=True, slots=True)
class Fact:
    """One current attribute, and what stood for it.

    Attributes:
        key: the current key.
        type: its type.
        old: other attributes, the first that has a value wins.
        words: from spellings to well-known values; what is not listed is written in lower case.
        minimum: numbers below it are not believed.
        maximum: numbers above it are not believed.
        time: whether it is a time within the span, in seconds; longer ones than the span are not believed.
    """

    key: str
    type: ValueKind
    old: tuple[Old, ...] = ()
    words: Mapping[str, str] | None = None
    minimum: float | None = None
    maximum: float | None = None
    time: bool = False


PROVIDERS: Mapping[str, str] = MappingProxyType(
    {
        "openai": "openai",
        "openai.chat": "openai",
        "openai.responses": "openai",
        "anthropic": "anthropic",
        "claude": "anthropic",
        "aws.bedrock": "aws.bedrock",
        "bedrock": "aws.bedrock",
        "aws_bedrock": "aws.bedrock",
        "aws": "aws.bedrock",
        "azure": "azure.ai.openai",
        "azure_openai": "azure.ai.openai",
        "azure openai": "azure.ai.openai",
        "az.ai.openai": "azure.ai.openai",
        "azure.ai.openai": "azure.ai.openai",
        "azure_ai": "azure.ai.inference",
        "az.ai.inference": "azure.ai.inference",
        "azure.ai.inference": "azure.ai.inference",
        "cohere": "cohere",
        "deepseek": "deepseek",
        "gcp.gemini": "gcp.gemini",
        "gemini": "gcp.gemini",
        "google_genai": "gcp.gemini",
        "google": "gcp.gen_ai",
        "gcp.gen_ai": "gcp.gen_ai",
        "gcp.vertex_ai": "gcp.vertex_ai",
        "vertex_ai": "gcp.vertex_ai",
        "vertexai": "gcp.vertex_ai",
        "groq": "groq",
        "ibm.watsonx.ai": "ibm.watsonx.ai",
        "watsonx": "ibm.watsonx.ai",
        "mistral_ai": "mistral_ai",
        "mistral": "mistral_ai",
        "mistralai": "mistral_ai",
        "perplexity": "perplexity",
        "x_ai": "x_ai",
        "xai": "x_ai",
        "vllm": "vllm",
        "rtp_llm": "rtp_llm",
        "ollama": "ollama",
    }
)

_REQUEST_TYPES = {
    "chat": "chat",
    "completion": "text_completion",
    "text_completion": "text_completion",
    "embedding": "embeddings",
    "embeddings": "embeddings",
    "generate_content": "generate_content",
}
OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        name: name
        for name in (
            "chat",
            "text_completion",
            "generate_content",
            "embeddings",
            "retrieval",
            "create_agent",
            "invoke_agent",
            "invoke_workflow",
            "execute_tool",
        )
    }
)
SPAN_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "EMBEDDING": "embeddings",
        "TOOL": "execute_tool",
        "AGENT": "invoke_agent",
        "RETRIEVER": "retrieval",
    }
)
"""OpenInference's span kinds; LLM is told apart by what is on the span."""
LLM_SPAN_KINDS = ("LLM", "EMBEDDING")
"""OpenInference's span kinds that are calls of a model."""

REQUEST_ID_PREFIXES: Mapping[str, str] = MappingProxyType(
    {
        "chatcmpl-": "chat",
        "cmpl-": "text_completion",
        "resp_": "chat",
        "embd-": "embeddings",
        "embedding-": "embeddings",
    }
)
"""How OpenAI-compatible servers begin request ids."""

ENDPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "/chat/completions": "chat",
        "/completions": "text_completion",
        "/embeddings": "embeddings",
        "/responses": "chat",
        "/v1/messages": "chat",
        "/api/chat": "chat",
        "/api/generate": "text_completion",
        "/api/embed": "embeddings",
        "/generate": "text_completion",
        "/generate_stream": "text_completion",
        ":generatecontent": "generate_content",
        ":streamgeneratecontent": "generate_content",
        ":embedcontent": "embeddings",
    }
)
"""Path ends of inference APIs, those first that end another."""

_OI_PARAMETERS = "llm.invocation_parameters"
_EMBEDDING_PARAMETERS = "embedding.invocation_parameters"
_RTP_NANOSECONDS: Mapping[str, Unit] = MappingProxyType({"rtp_llm": "ns"})
_RTP_MILLISECONDS: Mapping[str, Unit] = MappingProxyType({"rtp_llm": "ms"})


def _parameter(*names: str) -> tuple[Old, ...]:
    """A request parameter as OpenInference records it: a member of a JSON text."""
    return tuple(Old(_OI_PARAMETERS, path=name, conflicts=False, marks=False) for name in names)


def _tgi(key: str) -> Old:
    """Text Generation Inference writes Rust's debug form: "1.2ms"."""
    return Old(key, text_only=True, marks=False)


def _latency(name: str) -> Old:
    return Old(f"gen_ai.latency.{name}", systems=_RTP_NANOSECONDS)


FACTS: tuple[Fact, ...] = (
    Fact(
        "gen_ai.provider.name",
        "string",
        (
            Old("gen_ai.system"),
            Old("llm.provider"),
            Old("llm.system", conflicts=False),
            Old("llm.vendor"),
            Old("ai.model.provider", conflicts=False),
        ),
        words=PROVIDERS,
    ),
    Fact(
        "gen_ai.request.model",
        "string",
        (
            Old("llm.request.model"),
            Old("llm.request.model_name"),
            Old(_OI_PARAMETERS, path="model", conflicts=False, marks=False),
            Old(_EMBEDDING_PARAMETERS, path="model", conflicts=False, marks=False),
            Old("llm.model_name", conflicts=False),
            Old("embedding.model_name", conflicts=False),
            Old("reranker.model_name", conflicts=False, marks=False),
            Old("ai.model.id", conflicts=False),
            Old("triton.model_name", conflicts=False),
            Old(
                "model_name",
                beside=("model_version", "trace_parent_id", "triton.model_version"),
                text_only=True,
                conflicts=False,
                marks=False,
            ),
        ),
    ),
    Fact(
        "gen_ai.response.model",
        "string",
        (
            Old("llm.response.model"),
            Old("llm.response.model_name"),
            Old("output.value", path="model", conflicts=False, marks=False),
        ),
    ),
    Fact(
        "gen_ai.response.id",
        "string",
        (
            Old("gen_ai.response_id"),
            Old("llm.response.id"),
            Old("ai.response.id"),
            Old("output.value", path="id", conflicts=False, marks=False),
        ),
    ),
    Fact(
        "gen_ai.usage.input_tokens",
        "int",
        (
            Old("gen_ai.usage.prompt_tokens"),
            Old("llm.usage.prompt_tokens"),
            Old("llm.token_count.prompt"),
            Old("ai.usage.promptTokens"),
            Old("ai.usage.inputTokens"),
        ),
        minimum=0,
        maximum=MAX_TOKENS,
    ),
    Fact(
        "gen_ai.usage.output_tokens",
        "int",
        (
            Old("gen_ai.usage.completion_tokens"),
            Old("llm.usage.completion_tokens"),
            Old("llm.token_count.completion"),
            Old("ai.usage.completionTokens"),
            Old("ai.usage.outputTokens"),
        ),
        minimum=0,
        maximum=MAX_TOKENS,
    ),
    Fact(
        "gen_ai.usage.cache_read.input_tokens",
        "int",
        (
            Old("gen_ai.usage.cache_read_input_tokens"),
            Old("gen_ai.usage.cached_tokens"),
            Old("llm.usage.cache_read_input_tokens"),
            Old("llm.token_count.prompt_details.cache_read"),
        ),
        minimum=0,
        maximum=MAX_TOKENS,
    ),
    Fact(
        "gen_ai.usage.cache_write.input_tokens",
        "int",
        (
            Old("gen_ai.usage.cache_creation.input_tokens"),
            Old("gen_ai.usage.cache_creation_input_tokens"),
            Old("llm.usage.cache_creation_input_tokens"),
            Old("llm.token_count.prompt_details.cache_write"),
        ),
        minimum=0,
        maximum=MAX_TOKENS,
    ),
    Fact(
        "gen_ai.usage.reasoning.output_tokens",
        "int",
        (
            Old("gen_ai.usage.reasoning_tokens"),
            Old("llm.usage.reasoning_tokens"),
            Old("llm.token_count.completion_details.reasoning"),
        ),
        minimum=0,
        maximum=MAX_TOKENS,
    ),
    Fact(
        "gen_ai.request.temperature",
        "double",
        (Old("llm.request.temperature"), Old("llm.temperature"), *_parameter("temperature")),
        minimum=0,
        maximum=1000,
    ),
    Fact(
        "gen_ai.request.top_p",
        "double",
        (Old("llm.request.top_p"), Old("llm.top_p"), *_parameter("top_p")),
        minimum=0,
        maximum=1,
    ),
    Fact(
        "gen_ai.request.top_k",
        "int",
        (Old("llm.request.top_k"), Old("llm.top_k"), *_parameter("top_k")),
        minimum=-1,
        maximum=MAX_TOKENS,
    ),
    Fact(
        "gen_ai.request.max_tokens",
        "int",
        (
            Old("llm.request.max_tokens"),
            Old("gen_ai.request.max_output_tokens"),
            *_parameter("max_tokens", "max_completion_tokens", "max_output_tokens"),
        ),
        minimum=0,
        maximum=MAX_TOKENS,
    ),
    Fact(
        "gen_ai.request.frequency_penalty",
        "double",
        (Old("llm.frequency_penalty"), *_parameter("frequency_penalty")),
    ),
    Fact(
        "gen_ai.request.presence_penalty",
        "double",
        (Old("llm.presence_penalty"), *_parameter("presence_penalty")),
    ),
    Fact("gen_ai.request.seed", "int", (Old("gen_ai.openai.request.seed"), *_parameter("seed"))),
    Fact(
        "gen_ai.request.choice.count",
        "int",
        (Old("gen_ai.request.n"), *_parameter("n")),
        minimum=1,
        maximum=MAX_TOKENS,
    ),
    Fact(
        "gen_ai.request.stream",
        "bool",
        (
            Old("llm.is_streaming"),
            Old("gen_ai.is_streaming"),
            Old("gen_ai.request.is_stream"),
            *_parameter("stream"),
        ),
    ),
    Fact(
        "gen_ai.response.time_to_first_chunk",
        "double",
        (
            _latency("time_to_first_token"),
            Old("gen_ai.response.time_to_first_token", systems=_RTP_MILLISECONDS),
            Old("gen_ai.server.time_to_first_token"),
            Old("ai.response.msToFirstChunk", unit="ms"),
        ),
        time=True,
    ),
    Fact(
        catalog.GEN_AI_SERVER_QUEUE_TIME.key,
        "double",
        (_latency("time_in_queue"), _tgi("queue_time")),
        time=True,
    ),
    Fact(catalog.GEN_AI_SERVER_PREFILL_TIME.key, "double", (_latency("time_in_model_prefill"),), time=True),
    Fact(catalog.GEN_AI_SERVER_DECODE_TIME.key, "double", (_latency("time_in_model_decode"),), time=True),
    Fact(
        catalog.GEN_AI_SERVER_INFERENCE_TIME.key,
        "double",
        (_latency("time_in_model_inference"), _tgi("inference_time")),
        time=True,
    ),
    Fact(
        catalog.GEN_AI_SERVER_REQUEST_DURATION.key,
        "double",
        (_latency("e2e"), _tgi("total_time")),
        time=True,
    ),
    Fact(
        catalog.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN.key,
        "double",
        (Old("time_per_token", text_only=True),),
        time=True,
    ),
    Fact(
        "triton.model_version",
        "int",
        (Old("model_version", beside=("model_name",), marks=False),),
    ),
    Fact(
        "triton.request_id",
        "string",
        (Old("request_id", beside=("model_version",), text_only=True, marks=False),),
    ),
)
"""In the order in which they are written."""

OPERATION = Fact(
    "gen_ai.operation.name",
    "string",
    (
        Old("llm.request.type", words=_REQUEST_TYPES),
        Old("openinference.span.kind", words=SPAN_KINDS, conflicts=False, marks=False),
        Old(
            "traceloop.span.kind",
            words={"tool": "execute_tool", "agent": "invoke_agent", "workflow": "invoke_workflow"},
            conflicts=False,
            marks=False,
        ),
    ),
    words=OPERATIONS,
)

FINISH_REASONS = "gen_ai.response.finish_reasons"
OLD_FINISH_REASONS = (
    "gen_ai.response.finish_reason",
    "llm.finish_reason",
    "llm.response.finish_reason",
    "llm.response.stop_reason",
    "ai.response.finishReason",
)
COMMON_FINISH_REASONS = (
    "stop",
    "length",
    "tool_calls",
    "content_filter",
    "function_call",
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
)
"""Encoded once; others are encoded span by span."""

INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
SPAN_KIND = "openinference.span.kind"
REQUEST_ID = "gen_ai.request.id"
SYSTEM = "gen_ai.system"
PROVIDER = "gen_ai.provider.name"
HTTP_TARGETS = ("http.route", "url.path", "http.target", "url.full", "http.url")
"""Where the path of a request stands, in the order asked."""

"""Which attributes carry content: what people wrote to a model, and what it answered.

The one list of them, shared by whatever measures content and whatever redacts it. Names come from the
semantic conventions of all generations, from the instrumentations and frameworks that write their own,
and from gateways that put whole payloads on spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from otel_bridge.model import Scope


class Content(Enum):
    """What the content is."""

    PROMPT = "prompt"
    COMPLETION = "completion"
    TOOL = "tool"  # definitions, arguments and results of tool calls
    PAYLOAD = "payload"  # a whole request or response, or something that may hold either


@dataclass(frozen=True, slots=True)
class ContentKey:
    """One attribute that carries content.

    Attributes:
        key: the attribute's key, or with `prefix` how its keys begin.
        content: what it is.
        scope: where it stands, SPAN or EVENT.
        prefix: whether `key` is only the beginning of keys; see `HARMLESS_LEAVES`.
        event: for EVENT the only event that gives the key this meaning; empty: every event.
    """

    key: str
    content: Content
    scope: Scope = Scope.SPAN
    prefix: bool = False
    event: str = ""


HARMLESS_LEAVES = frozenset({"role", "type", "finish_reason", "id", "tool_call_id", "mime_type", "score"})
"""Last segments of keys under a prefix that tell no content, as in llm.input_messages.0.message.role."""

_PROMPT = (
    # Semantic conventions, current and past
    "gen_ai.input.messages",
    "gen_ai.system_instructions",
    "gen_ai.prompt",
    "gen_ai.retrieval.query.text",
    # OpenInference
    "input.value",
    "llm.input_messages",
    "llm.prompts",
    "llm.prompt_template.template",
    "llm.prompt_template.variables",
    "embedding.text",
    "reranker.query",
    # OpenLLMetry
    "traceloop.entity.input",
    "traceloop.prompt.template",
    "traceloop.prompt.template_variables",
    "llm.prompt.template",
    # Frameworks and back ends
    "ai.prompt",
    "ai.prompt.messages",
    "ai.value",
    "ai.values",
    "ai.input_messages",
    "gen_ai.request.messages",
    "langfuse.observation.input",
    "langfuse.trace.input",
    "mlflow.spanInputs",
    "inputs",
    "input",
    "prompt",
    "gcp.vertex.agent.llm_request",
    "gen_ai.prompt_json",
    "gen_ai.task.input",
    "gen_ai.workflow.input",
    "gen_ai.agent.instructions",
    "braintrust.input",
    "braintrust.input_json",
    "langwatch.input",
    "lk.input_text",
    "lk.chat_ctx",
    "tfy.input",
    "llm.input",
    "raw_input",
    "user_prompt",
)
_COMPLETION = (
    "gen_ai.output.messages",
    "gen_ai.completion",
    "gen_ai.response.text",
    "gen_ai.retrieval.documents",
    "output.value",
    "llm.output_messages",
    "llm.completions",
    "llm.responses",
    "traceloop.entity.output",
    "ai.response.text",
    "ai.response.object",
    "ai.response.reasoning",
    "ai.result.text",
    "ai.result.object",
    "ai.responses",
    "langfuse.observation.output",
    "langfuse.trace.output",
    "mlflow.spanOutputs",
    "outputs",
    "output",
    "completion",
    "final_result",
    "gcp.vertex.agent.llm_response",
    "gen_ai.completion_json",
    "gen_ai.task.output",
    "gen_ai.workflow.output",
    "gen_ai.content.reasoning",
    "braintrust.output",
    "braintrust.output_json",
    "langwatch.output",
    "lk.response.text",
    "tfy.output",
    "llm.output",
)
_TOOL = (
    "gen_ai.tool.definitions",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
    "gen_ai.tool.input",
    "gen_ai.tool.output",
    "gen_ai.tool.message",
    "gen_ai.request.available_tools",
    "gen_ai.response.tool_calls",
    "llm.function_call",
    "llm.tools",
    "tool.parameters",
    "tool_arguments",
    "tool_response",
    "ai.prompt.tools",
    "ai.response.toolCalls",
    "ai.result.toolCalls",
    "ai.toolCall.args",
    "ai.toolCall.result",
    "gcp.vertex.agent.tool_call_args",
    "gcp.vertex.agent.tool_response",
    "gen_ai.tool.args",
    "gen_ai.agent.action.tool_input",
    "lk.function_tool.output",
    "mcp.tool.arguments",
    "mcp.tool.result",
    "mcp.params",
    "mcp.result",
    "mcp.sampling.messages",
    "mlflow.chat.tools",
)
_PAYLOAD = (
    # Bodies, as HTTP and gRPC instrumentations and proxies put them on spans
    "http.request.body",
    "http.request.body.content",
    "http.request.body.text",
    "http.request_body",
    "http.response.body",
    "http.response.body.content",
    "http.response.body.text",
    "http.response_body",
    "request.body",
    "response.body",
    "request.payload",
    "response.payload",
    "rpc.request.body",
    "rpc.response.body",
    "request_data",
    "response_data",
    # Parameters that may repeat tools, stop texts or the whole request
    "llm.invocation_parameters",
    "embedding.invocation_parameters",
    # Agents' whole conversations
    "all_messages_events",
    "pydantic_ai.all_messages",
    "events",
    "gen_ai.event.content",
    "gcp.vertex.agent.data",
)
_PREFIXES = (
    ("gen_ai.prompt.", Content.PROMPT),
    ("gen_ai.completion.", Content.COMPLETION),
    ("traceloop.prompt.template_variables.", Content.PROMPT),
    ("openclaw.content.", Content.PAYLOAD),
    ("llm.input_messages.", Content.PROMPT),
    ("llm.output_messages.", Content.COMPLETION),
    ("llm.prompts.", Content.PROMPT),
    ("llm.completions.", Content.COMPLETION),
    ("llm.choices.", Content.COMPLETION),
    ("llm.tools.", Content.TOOL),
    ("llm.request.functions.", Content.TOOL),
    ("embedding.embeddings.", Content.PROMPT),
    ("retrieval.documents.", Content.COMPLETION),
    ("reranker.input_documents.", Content.PROMPT),
    ("reranker.output_documents.", Content.COMPLETION),
)

GATEWAY_PROVIDERS = (
    "openai",
    "azure",
    "azure_ai",
    "anthropic",
    "bedrock",
    "vertex_ai",
    "gemini",
    "mistral",
    "cohere",
    "groq",
    "deepseek",
    "hosted_vllm",
    "vllm",
    "ollama",
    "huggingface",
    "triton",
    "sagemaker",
    "openrouter",
    "None",
)
_GATEWAY_FIELDS = (
    ("messages", Content.PROMPT),
    ("prompt", Content.PROMPT),
    ("input", Content.PROMPT),
    ("inputs", Content.PROMPT),
    ("system", Content.PROMPT),
    ("contents", Content.PROMPT),
    ("choices", Content.COMPLETION),
    ("content", Content.COMPLETION),
    ("candidates", Content.COMPLETION),
    ("output", Content.COMPLETION),
    ("tools", Content.TOOL),
    ("functions", Content.TOOL),
)
"""LiteLLM repeats a raw request and its response as `llm.<provider>.<field>`, one attribute a field."""

_MESSAGE_EVENTS = (
    ("gen_ai.system.message", Content.PROMPT),
    ("gen_ai.user.message", Content.PROMPT),
    ("gen_ai.assistant.message", Content.PROMPT),
    ("gen_ai.tool.message", Content.TOOL),
    ("gen_ai.choice", Content.COMPLETION),
)
_MESSAGE_EVENT_KEYS = ("content", "message", "tool_calls", "tool.result")


def _events() -> tuple[ContentKey, ...]:
    by_event = (
        ContentKey(key, content, Scope.EVENT, event=event)
        for event, content in _MESSAGE_EVENTS
        for key in _MESSAGE_EVENT_KEYS
    )
    anywhere = (
        ContentKey(key, content, Scope.EVENT)
        for key, content in (
            ("gen_ai.prompt", Content.PROMPT),
            ("gen_ai.completion", Content.COMPLETION),
            ("gen_ai.input.messages", Content.PROMPT),
            ("gen_ai.output.messages", Content.COMPLETION),
            ("gen_ai.system_instructions", Content.PROMPT),
            ("gen_ai.tool.definitions", Content.TOOL),
            ("gen_ai.event.content", Content.PAYLOAD),
            ("llm.content.completion.chunk", Content.COMPLETION),
            ("gen_ai.content.completion.chunk", Content.COMPLETION),
        )
    )
    return (*by_event, *anywhere)


CONTENT: tuple[ContentKey, ...] = (
    *(ContentKey(key, Content.PROMPT) for key in _PROMPT),
    *(ContentKey(key, Content.COMPLETION) for key in _COMPLETION),
    *(ContentKey(key, Content.TOOL) for key in _TOOL),
    *(ContentKey(key, Content.PAYLOAD) for key in _PAYLOAD),
    *(ContentKey(key, content, prefix=True) for key, content in _PREFIXES),
    *(
        ContentKey(f"llm.{provider}.{field}", content)
        for provider in GATEWAY_PROVIDERS
        for field, content in _GATEWAY_FIELDS
    ),
    *_events(),
)
"""Every content-bearing attribute, spans' and events'."""

"""What enrichment does without being told."""

from __future__ import annotations

from typing import Any

from otel_bridge import catalog

BODY_ATTRIBUTES = (
    "http.request.body",
    "http.request.body.content",
    "http.request.body.text",
    "http.request_body",
    "request.body",
    "request.payload",
    "rpc.request.body",
)
"""Where instrumentations and proxies put a captured request body."""

PROMPT_PATHS = (
    # OpenAI chat, Ollama, and every engine that speaks their dialect
    "messages[*].content",
    "messages[*].content[*]",
    "messages[*].content[*].text",
    # Anthropic: tool results inside a content list; Bedrock's Converse
    "messages[*].content[*].content",
    "messages[*].content[*].content[*].text",
    "messages[*].content[*].toolResult.content[*].text",
    "system",
    "system[*].text",
    # Completions: one prompt or a list
    "prompt",
    "prompt[*]",
    # Responses and embeddings
    "input",
    "input[*]",
    "input[*].content",
    "input[*].content[*].text",
    "input[*].output",
    "instructions",
    # Gemini
    "contents.parts[*].text",
    "contents[*].parts[*].text",
    "systemInstruction.parts[*].text",
    "system_instruction.parts[*].text",
    # TGI, Triton's generate endpoint, KServe's v2 protocol
    "inputs",
    "text_input",
    "inputs[*].data[*]",
)
"""The text of a prompt in the request bodies that servers take."""

MODEL_KEYS = ("gen_ai.request.model", "gen_ai.response.model")
RESOURCE_MODEL_KEYS = (
    catalog.LLM_MODEL_ID.key,
    "gen_ai.request.model",
    "llm.model_name",
    "model.name",
)

_ANY_KIND = ("unspecified", "internal", "server", "client", "producer", "consumer")
_ANCESTORS = 16

TARGETS: dict[str, dict[str, Any]] = {
    catalog.LLM_MODEL_ID.key: {
        "type": "string",
        "sources": (
            {"header": "x-model-id"},
            {"grpc_metadata": "x-model-id"},
            # A client's own span says which model it asked for, whatever its kind.
            {"attribute": MODEL_KEYS, "kinds": _ANY_KIND},
            {"body": ("model",)},
            {"query": "model"},
            {"resource": RESOURCE_MODEL_KEYS},
            {"paired_span": True},
            {"parent_span": _ANCESTORS},
        ),
    },
    catalog.LLM_PROMPT_LEN.key: {
        "type": "int",
        "minimum": 0,
        "maximum": 1 << 30,
        "sources": (
            {"header": "x-prompt-len"},
            {"body_text": PROMPT_PATHS},
            # Prompts stand on clients' spans, and are measured before redaction takes them off.
            {"messages": True, "kinds": _ANY_KIND},
        ),
    },
    catalog.LLM_BATCH_SIZE.key: {
        "type": "int",
        "minimum": 1,
        "maximum": 65_536,
        "sources": (
            {"query": "batch_size"},
            {"default": 1},
        ),
    },
}

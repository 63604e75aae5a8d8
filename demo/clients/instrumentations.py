"""Each public instrumentation of the `openai` client, switched on as its own documentation says.

They are imported where they are used: each environment has one of them only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opentelemetry import propagate

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import TracerProvider


def openai_v2(provider: TracerProvider) -> None:
    """OpenTelemetry's own, with the names it writes unless told otherwise (conventions up to 1.36)."""
    from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor  # noqa: PLC0415
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor  # noqa: PLC0415

    HTTPXClientInstrumentor().instrument(tracer_provider=provider)
    OpenAIInstrumentor().instrument(tracer_provider=provider)


def openai_v2_latest(provider: TracerProvider) -> None:
    """OpenTelemetry's own, told to write current names and the content of messages."""
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "span_only"
    openai_v2(provider)


def openinference(provider: TracerProvider) -> None:
    """OpenInference's, by Arize."""
    from openinference.instrumentation.openai import OpenAIInstrumentor  # noqa: PLC0415

    OpenAIInstrumentor().instrument(tracer_provider=provider)


def openllmetry(provider: TracerProvider) -> None:
    """OpenLLMetry's, by Traceloop."""
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor  # noqa: PLC0415

    OpenAIInstrumentor().instrument(tracer_provider=provider)


INSTRUMENTATIONS: dict[str, Callable[[TracerProvider], None]] = {
    "openai-v2": openai_v2,
    "openai-v2-latest": openai_v2_latest,
    "openinference": openinference,
    "openllmetry": openllmetry,
}


def traceparent_hooks(name: str) -> dict[str, list[Callable[..., None]]]:
    """Event hooks for the HTTP client that the `openai` package brings.

    openai 3 uses httpx2, which no instrumentation propagates through: an application that wants the server's
    spans in its trace injects traceparent itself. The OpenInference client here does; the OpenLLMetry client
    does not, so that its server spans are roots, as they are for most users today.
    """
    if name != "openinference":
        return {}
    return {"request": [lambda request: propagate.inject(request.headers)]}


def model_header(name: str, model: str) -> dict[str, str]:
    """The header by which gateways route; without it (OpenLLMetry here) only the body names the model."""
    return {} if name == "openllmetry" else {"x-model-id": model}

"""OpenAI's API over the engine: chat and text completions, streamed or whole, embeddings, models, metrics."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from demo.engine.engine import EngineError
from demo.engine.tracing import Timings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from aiohttp.typedefs import Handler
    from opentelemetry.context import Context

    from demo.engine.engine import Body, Engine
    from demo.engine.tracing import Tracing

LARGEST_BODY = 8 << 20
ANSWER_LENGTH = 64
"""Tokens of an answer when the request does not say."""


class Request(BaseModel):
    """What every generating request says; the engine checks the rest."""

    model_config = ConfigDict(extra="allow")

    model: str
    n: int = Field(1, ge=1, le=16)
    stream: bool = False
    stream_options: dict[str, Any] | None = None


class ChatRequest(Request):
    """/v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)


class CompletionRequest(Request):
    """/v1/completions."""

    prompt: str | list[str]


class ApiError(Exception):
    """An answer other than success, in OpenAI's form."""

    def __init__(self, status: int, kind: str, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": status}


@dataclass
class Generation:
    """One answer of the engine being made, and what it took."""

    started_ns: int = field(default_factory=time.time_ns)
    started: float = field(default_factory=time.perf_counter)
    first_token: float | None = None
    answer: dict[str, Any] = field(default_factory=dict)

    def timings(self) -> Timings:
        """From the engine's own figures, in seconds."""
        engine = self.answer.get("timings", {})
        first = None if self.first_token is None else self.first_token - self.started
        return Timings(
            e2e=time.perf_counter() - self.started,
            prefill=engine.get("prompt_ms", 0.0) / 1e3,
            decode=engine.get("predicted_ms", 0.0) / 1e3,
            to_first_token=first,
        )


class OpenAIServer:
    """The API's handlers."""

    def __init__(self, engine: Engine, tracing: Tracing) -> None:
        self._engine = engine
        self._tracing = tracing

    def app(self) -> web.Application:
        """The application to serve."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[answer_errors])
        app.add_routes(
            [
                web.post("/v1/chat/completions", self.chat_completions),
                web.post("/v1/completions", self.completions),
                web.post("/v1/embeddings", self.embeddings),
                web.get("/v1/models", self.models),
                web.get("/metrics", self.metrics),
                web.get("/health", self.health),
            ]
        )
        return app

    async def chat_completions(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = await self._body(http, ChatRequest)
        request_id = f"chatcmpl-{uuid.uuid4().hex}"
        if body.get("stream"):
            return await self._stream(http, body, request_id, self._engine.stream_chat)
        context = self._tracing.context(http.headers)
        choices = await asyncio.gather(*(self._chat_once(body) for _ in range(body["n"])))
        self._record(context, request_id, body, choices)
        return web.json_response(merged(request_id, [choices]))

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """POST /v1/completions; several prompts, and several choices of each, run side by side."""
        body = await self._body(http, CompletionRequest)
        request_id = f"cmpl-{uuid.uuid4().hex}"
        prompts = [body["prompt"]] if isinstance(body["prompt"], str) else body["prompt"]
        if body.get("stream"):
            if len(prompts) != 1:
                raise ApiError(400, "invalid_request_error", "a stream takes one prompt", param="prompt")
            body["prompt"] = prompts[0]
            return await self._stream(http, body, request_id, self._engine.stream_completion)
        context = self._tracing.context(http.headers)
        by_prompt = await asyncio.gather(
            *(
                asyncio.gather(*(self._complete_once(body, prompt) for _ in range(body["n"])))
                for prompt in prompts
            )
        )
        for number, choices in enumerate(by_prompt):
            self._record(context, f"{request_id}-{number}", body, choices)
        return web.json_response(merged(request_id, by_prompt))

    async def embeddings(self, http: web.Request) -> web.Response:
        """POST /v1/embeddings."""
        body = await self._body(http, Request)
        return web.json_response(await self._engine.embed(body))

    async def models(self, _http: web.Request) -> web.Response:
        """GET /v1/models."""
        model = {"id": self._engine.name, "object": "model", "created": 0, "owned_by": "demo"}
        return web.json_response({"object": "list", "data": [model]})

    async def metrics(self, _http: web.Request) -> web.Response:
        """GET /metrics."""
        return web.Response(text=await self._engine.metrics(), content_type="text/plain")

    async def health(self, _http: web.Request) -> web.Response:
        """GET /health."""
        return web.json_response({"status": "ok"})

    async def _body(self, http: web.Request, shape: type[Request]) -> Body:
        text = await http.text()
        self._tracing.capture_body(text)
        try:
            body = shape.model_validate_json(text).model_dump(exclude_none=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or None
            raise ApiError(400, "invalid_request_error", f"{where}: {first['msg']}", param=where) from error
        if body["model"] != self._engine.name:
            known = f"this server has {self._engine.name}"
            raise ApiError(
                404, "not_found_error", f"The model {body['model']} does not exist: {known}.", param="model"
            )
        if body["stream"] and body["n"] != 1:
            raise ApiError(400, "invalid_request_error", "a stream has one choice", param="n")
        if not {"max_tokens", "max_completion_tokens"} & body.keys():
            body["max_tokens"] = ANSWER_LENGTH
        return body

    async def _chat_once(self, body: Body) -> Generation:
        generation = Generation()
        generation.answer = await self._engine.chat({**body, "n": 1})
        return generation

    async def _complete_once(self, body: Body, prompt: str) -> Generation:
        generation = Generation()
        generation.answer = await self._engine.complete({**body, "n": 1, "prompt": prompt})
        return generation

    async def _stream(
        self,
        http: web.Request,
        body: Body,
        request_id: str,
        start: Callable[[Body], AsyncGenerator[Body, None]],
    ) -> web.StreamResponse:
        context = self._tracing.context(http.headers)
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        generation = Generation()
        chunks = start({**body, "stream_options": {"include_usage": True}})
        # The first chunk comes before the status line, so that a refusal still gets its own status.
        first = await anext(chunks)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        )
        await response.prepare(http)
        try:
            async for chunk in prepended(first, chunks):
                chunk["id"] = request_id
                if generation.first_token is None and has_text(chunk):
                    generation.first_token = time.perf_counter()
                if "usage" in chunk:
                    generation.answer = chunk
                    if not wants_usage:
                        continue
                await response.write(event(chunk))
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        finally:
            await chunks.aclose()
            self._record(context, request_id, body, [generation])
        return response

    def _record(self, context: Context, request_id: str, body: Body, choices: Sequence[Generation]) -> None:
        longest = max((choice.timings() for choice in choices), key=lambda timings: timings.e2e)
        started_ns = min(choice.started_ns for choice in choices)
        self._tracing.llm_request(
            context, request_id, body, start_ns=started_ns, timings=longest, usage=usage([choices])
        )


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refusals in OpenAI's form."""
    try:
        return await handler(request)
    except ApiError as refusal:
        return web.json_response({"error": refusal.error}, status=refusal.status)
    except EngineError as refusal:
        error = ApiError(refusal.status, refusal.kind, str(refusal)).error
        return web.json_response({"error": error}, status=refusal.status)


def merged(request_id: str, by_prompt: Sequence[Sequence[Generation]]) -> Body:
    """Several answers of the engine as one response with several choices, prompt by prompt."""
    answers = [generation.answer for choices in by_prompt for generation in choices]
    choices = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
    whole = {key: value for key, value in answers[0].items() if key != "timings"}
    return {**whole, "id": request_id, "choices": choices, "usage": usage(by_prompt)}


def usage(by_prompt: Sequence[Sequence[Generation]]) -> dict[str, int]:
    """Tokens as OpenAI counts them: a prompt once, however many choices; empty if a stream ended early."""
    answers = [[choice.answer for choice in choices] for choices in by_prompt]
    if not all("usage" in answer for choices in answers for answer in choices):
        return {}
    prompt = sum(choices[0]["usage"]["prompt_tokens"] for choices in answers)
    completion = sum(answer["usage"]["completion_tokens"] for choices in answers for answer in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def event(chunk: Body) -> bytes:
    """A chunk as a server-sent event, without what only llama.cpp says."""
    told = {key: value for key, value in chunk.items() if key != "timings"}
    return f"data: {json.dumps(told, ensure_ascii=False)}\n\n".encode()


def has_text(chunk: Body) -> bool:
    """Whether a chunk carries generated text, not only a role or an end."""
    return any(
        choice.get("text") or (choice.get("delta") or {}).get("content")
        for choice in chunk.get("choices", [])
    )


async def prepended(first: Body, rest: AsyncIterator[Body]) -> AsyncIterator[Body]:
    """An iterator with its first item put back."""
    yield first
    async for item in rest:
        yield item

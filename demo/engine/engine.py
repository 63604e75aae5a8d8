"""llama.cpp's server engine from asyncio: continuous batching over a few slots, one KV cache."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import xllamacpp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

SLOTS = 4
SLOT_CONTEXT = 1024
"""Tokens of prompt and answer that one request can have."""
MOST_WAITING = 64
"""Calls that the engine holds at once, in slots and in its queue; each occupies a thread here."""

Body = dict[str, Any]


class EngineError(Exception):
    """The engine refused a request.

    Attributes:
        status: the HTTP status to answer.
        kind: OpenAI's error type.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Engine:
    """One model, loaded.

    Args:
        model: the GGUF file.
        name: what requests call it.
    """

    def __init__(self, model: Path, name: str) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.model_alias = {name}
        params.n_parallel = SLOTS
        params.n_ctx = SLOTS * SLOT_CONTEXT
        params.endpoint_metrics = True
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
        # A model this small gains nothing from a second thread, and spinning threads cost a shared machine.
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.fit_params = False
        params.warmup = False
        params.verbosity = 1
        self.name = name
        self._server = xllamacpp.Server(params)
        self._threads = ThreadPoolExecutor(MOST_WAITING, thread_name_prefix="engine-call")

    async def chat(self, body: Body) -> Body:
        """One chat completion, whole."""
        return await self._call(self._server.handle_chat_completions, body)

    async def complete(self, body: Body) -> Body:
        """One text completion, whole."""
        return await self._call(self._server.handle_completions, body)

    async def embed(self, body: Body) -> Body:
        """Embeddings of one or several inputs."""
        return await self._call(self._server.handle_embeddings, body)

    def stream_chat(self, body: Body) -> AsyncGenerator[Body, None]:
        """A chat completion, chunk by chunk; closing the iterator frees the slot."""
        return self._stream(self._server.handle_chat_completions, body)

    def stream_completion(self, body: Body) -> AsyncGenerator[Body, None]:
        """A text completion, chunk by chunk; closing the iterator frees the slot."""
        return self._stream(self._server.handle_completions, body)

    async def metrics(self) -> str:
        """The engine's own metrics in Prometheus's text format."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._server.handle_metrics)

    async def _call(self, function: Callable[..., Any], body: Body) -> Body:
        loop = asyncio.get_running_loop()
        return checked(await loop.run_in_executor(self._threads, guarded, function, body))

    async def _stream(self, function: Callable[..., Any], body: Body) -> AsyncGenerator[Body, None]:
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[Body | None] = asyncio.Queue()
        abandoned = threading.Event()

        def take(chunk: Body) -> bool:
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            return abandoned.is_set()

        call = loop.run_in_executor(self._threads, guarded, function, {**body, "stream": True}, take)
        call.add_done_callback(lambda _: chunks.put_nowait(None))
        try:
            while (chunk := await chunks.get()) is not None:
                yield checked(chunk)
            checked(call.result() or {})
        finally:
            abandoned.set()


def guarded(function: Callable[..., Any], *args: Any) -> Any:
    """Call the engine; what it says about a malformed request comes as ValueError."""
    try:
        return function(*args)
    except ValueError as error:
        return {"error": {"code": 400, "type": "invalid_request_error", "message": str(error)}}


def checked(answer: Body) -> Body:
    """The answer, unless it is an error."""
    error = answer.get("error")
    if error is not None:
        raise EngineError(
            int(error.get("code", 500)), str(error.get("type", "server_error")), error["message"]
        )
    return answer

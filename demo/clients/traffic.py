"""What the clients ask: what real applications do, in prompts of many scripts and lengths."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import openai

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from openai import OpenAI

MODEL = "tiny"
SHORT, MEDIUM, LONG = (8, 40), (60, 120), (200, 300)
"""Prompt lengths in characters, from and to; the longest still fit a slot's context at three bytes each."""
LENGTH_MIX: tuple[tuple[tuple[int, int], float], ...] = ((SHORT, 0.5), (MEDIUM, 0.35), (LONG, 0.15))
AT_ONCE = 6
"""More than the engine has slots, so that some wait."""
PHRASES = (
    "Grüße aus Köln",
    "naïve façade",
    "日本語のプロンプト",
    "Привет, мир",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "plain words",
    "🛰️ telemetry",
)


@dataclass(frozen=True)
class Exchange:
    """One thing that an application does.

    Attributes:
        name: for people.
        run: does it; gives the UTF-8 bytes of prompt text in each request it made, in order.
        refused: the error that the server is meant to answer with.
    """

    name: str
    run: Callable[[OpenAI], list[int]]
    refused: type[openai.APIStatusError] | None = None


def prompts(count: int, seed: int) -> Iterator[str]:
    """Prompts whose lengths follow LENGTH_MIX and whose scripts are mixed; the same for the same seed."""
    draw = random.Random(seed)  # noqa: S311 - test traffic, not a secret
    ranges = [lengths for lengths, _ in LENGTH_MIX]
    shares = [share for _, share in LENGTH_MIX]
    for least, most in draw.choices(ranges, shares, k=count):
        wanted = draw.randint(least, most)
        text = ""
        while len(text) < wanted:
            text += draw.choice(PHRASES) + " "
        yield text[:wanted]


def chat(client: OpenAI) -> list[int]:
    """A system message and a question in several scripts."""
    system, question = "You are brief.", "Grüße aus Köln: naïve 日本語 prompt"
    client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "system", "content": system}, {"role": "user", "content": question}],
        max_tokens=12,
        temperature=0.3,
        top_p=0.9,
        seed=4,
    )
    return [size(system, question)]


def streamed_chat(client: OpenAI) -> list[int]:
    """A stream, its question in two parts."""
    parts = "Tell me about rain", " — und über den Wind"
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": [{"type": "text", "text": part} for part in parts]}],
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    for _chunk in stream:
        pass
    return [size(*parts)]


def completion(client: OpenAI) -> list[int]:
    """Two prompts, two choices of each; the caller says the batch size in the query."""
    two = ["The river was", "Der Fluß war"]
    client.completions.create(
        model=MODEL, prompt=two, n=2, max_tokens=8, extra_query={"batch_size": len(two)}
    )
    return [size(*two)]


def conversation(client: OpenAI) -> list[int]:
    """Three turns, each with all that was said before."""
    messages: list[Any] = [{"role": "system", "content": "Answer in a few words."}]
    sizes = []
    for question in ("Who are you?", "Woher kommst du?", "もう一度お願いします"):
        messages.append({"role": "user", "content": question})
        sizes.append(size(*(message["content"] for message in messages)))
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or "…"})
    return sizes


def burst(client: OpenAI) -> list[int]:
    """Several chats at once, in a controlled mix of lengths: the engine batches them."""

    def ask(prompt: str) -> int:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": prompt}], max_tokens=24
        )
        return size(prompt)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        calls = [pool.submit(copy_context().run, ask, prompt) for prompt in prompts(AT_ONCE, seed=11)]
    return [call.result() for call in calls]


def embeddings(client: OpenAI) -> list[int]:
    """Two texts to embed."""
    texts = ["a quiet river", "ein stiller Fluß"]
    client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    return [size(*texts)]


def unknown_model(client: OpenAI) -> list[int]:
    """A model that the server does not have."""
    client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hello"}])
    return []


def too_long(client: OpenAI) -> list[int]:
    """A prompt longer than a slot's context."""
    client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "long " * 400}], max_tokens=8
    )
    return []


def size(*texts: str) -> int:
    """UTF-8 bytes of prompt text."""
    return sum(len(text.encode()) for text in texts)


EXCHANGES = (
    Exchange("chat, several scripts", chat),
    Exchange("streamed chat, two-part question", streamed_chat),
    Exchange("completion, two prompts, two choices each", completion),
    Exchange("conversation of three turns", conversation),
    Exchange(f"{AT_ONCE} chats at once, short to long", burst),
    Exchange("embeddings", embeddings),
    Exchange("unknown model (404)", unknown_model, openai.NotFoundError),
    Exchange("prompt longer than the context (400)", too_long, openai.BadRequestError),
)

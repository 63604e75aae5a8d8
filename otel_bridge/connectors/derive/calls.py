"""Calls of a model: which spans count for one, and what each tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from otel_bridge import catalog
from otel_bridge.connectors.derive.labels import Trait
from otel_bridge.groups import (
    CLIENT,
    FIRST_OF_CALL,
    FIRST_OF_ID,
    NO_ROLE,
    SERVER,
    TELLS,
    Calls,
    Column,
)
from otel_bridge.model import StatusCode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.catalog import DerivedMetric
    from otel_bridge.connectors.derive.labels import Labelled

    Mask = NDArray[np.bool_]
    F8 = NDArray[np.float64]

MAX_TOKENS = 1e9
"""More tokens than any request has."""
MAX_SECONDS = 86_400.0
"""A longer time within a call is another unit or an accident."""
MAX_ID_BYTES = 512

_RESPONSE_ID = "gen_ai.response.id"
_REQUEST_ID = "gen_ai.request.id"
_INPUT_TOKENS = "gen_ai.usage.input_tokens"
_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
_STREAM = "gen_ai.request.stream"
_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
_INSIDE = (
    catalog.GEN_AI_SERVER_QUEUE_TIME.key,
    catalog.GEN_AI_SERVER_PREFILL_TIME.key,
    catalog.GEN_AI_SERVER_DECODE_TIME.key,
    catalog.GEN_AI_SERVER_INFERENCE_TIME.key,
)
"""Only the engine itself knows these, whatever kind its spans are of."""


class Observe(Protocol):
    """Takes the values of spans that a mask picks."""

    def __call__(
        self, metric: DerivedMetric, mask: Mask, values: F8, *, variant: str = "", largest: float = np.inf
    ) -> None:
        """Observe them; NaN is no value."""


class CallSpans:
    """Tells spans that count for a call from those that tell of it once more.

    A span tells of a call when its operation is one (chat, text completion, embeddings, …), or when it has no
    operation and has tokens, says whether it streams, or is a whole inference of Triton's. SERVER and
    CONSUMER spans, and those with times that only an engine knows, tell of it from the server's side, all
    others from the client's.
    """

    def __init__(self, plan: PlanBuilder, capacity: int) -> None:
        self._calls = Calls(capacity)
        self._marks = (plan.want(_INPUT_TOKENS), plan.want(_OUTPUT_TOKENS), plan.want(_STREAM))
        self._inside = tuple(plan.want(key) for key in _INSIDE)
        self._response_id = plan.want(_RESPONSE_ID)
        self._request_id = plan.want(_REQUEST_ID)

    def adopt(self, older: CallSpans) -> None:
        """Go on with what another remembers."""
        self._calls = older._calls

    def tell(
        self, batch: Batch, labelled: Labelled, taken: Mask, inferences: Mask | None
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
        """For each span its role and what `groups.Calls.tell` says of it; None: no span tells of a call.

        `inferences` are those of Triton's.
        """
        roles = self._roles(batch, labelled, taken, inferences)
        some = bool(np.count_nonzero(roles))
        if not some and not len(self._calls):
            return roles, None
        ids = labelled.texts.column((), MAX_ID_BYTES)
        if some:
            response = labelled.texts.column(batch.resolved_texts(self._response_id), MAX_ID_BYTES + 1)
            request = labelled.texts.column(batch.resolved_texts(self._request_id), MAX_ID_BYTES + 1)
            served = request.otherwise(response)
            server = roles == SERVER
            ids = Column(
                np.where(server, served.offs, response.offs), np.where(server, served.lens, response.lens)
            )
        said = self._calls.tell(batch.spans, roles, labelled.texts, labelled.services, ids)
        return roles, said if some else None

    def _roles(
        self, batch: Batch, labelled: Labelled, taken: Mask, inferences: Mask | None
    ) -> NDArray[np.uint8]:
        tells = labelled.having(Trait.CALL)
        unnamed = labelled.having(Trait.NO_OPERATION)
        for slot in self._marks:
            if batch.resolved_has(slot):
                tells |= unnamed & ~np.isnan(batch.resolved_numbers(slot))
        if inferences is not None:
            tells |= unnamed & inferences
        tells &= taken
        if not np.count_nonzero(tells):
            return np.full(len(batch), NO_ROLE, "u1")
        server = labelled.having(Trait.ENTRY)
        for slot in self._inside:
            if batch.resolved_has(slot):
                server |= ~np.isnan(batch.resolved_numbers(slot))
        return np.where(tells, np.where(server, SERVER, CLIENT), NO_ROLE).astype("u1")


class Measures:
    """Tokens and times of calls, each from the side that knows it."""

    def __init__(self, plan: PlanBuilder) -> None:
        self._input, self._output = plan.want(_INPUT_TOKENS), plan.want(_OUTPUT_TOKENS)
        self._first = plan.want(_FIRST_CHUNK)
        self._queue = plan.want(catalog.GEN_AI_SERVER_QUEUE_TIME.key)
        self._decode = plan.want(catalog.GEN_AI_SERVER_DECODE_TIME.key)
        self._request = plan.want(catalog.GEN_AI_SERVER_REQUEST_DURATION.key)
        self._token_time = plan.want(catalog.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN.key)

    def observe(
        self,
        batch: Batch,
        observe: Observe,
        roles: NDArray[np.uint8],
        said: NDArray[np.uint8],
        seconds: F8,
    ) -> dict[str, int]:
        """Observe the calls of one request.

        Args:
            batch: the request.
            observe: where values go.
            roles: of its spans.
            said: of its spans, by `groups.Calls`.
            seconds: their durations.

        Returns:
            By side, how many calls that did not fail tell of no tokens.
        """
        first_of_call, first_of_id = (said & FIRST_OF_CALL) > 0, (said & FIRST_OF_ID) > 0
        client = (roles == CLIENT) & first_of_call
        server = roles == SERVER
        tokens_in, tokens_out = batch.resolved_numbers(self._input), batch.resolved_numbers(self._output)
        first = batch.resolved_numbers(self._first)

        observe(catalog.DERIVED_CLIENT_DURATION, client, seconds)
        for kind, values in (("input", tokens_in), ("output", tokens_out)):
            observe(catalog.DERIVED_CLIENT_TOKENS, client, values, variant=kind, largest=MAX_TOKENS)
        observe(catalog.DERIVED_CLIENT_FIRST_CHUNK, client, first, largest=MAX_SECONDS)

        request = batch.resolved_numbers(self._request)
        known = (request >= 0) & (request <= MAX_SECONDS)
        request = np.where(known, request, seconds)
        calls = server & first_of_call
        observe(catalog.DERIVED_SERVER_DURATION, calls, request)
        observe(catalog.DERIVED_SERVER_FIRST_TOKEN, calls, first, largest=MAX_SECONDS)
        queue = batch.resolved_numbers(self._queue)
        observe(catalog.DERIVED_SERVER_QUEUE, calls, queue, largest=MAX_SECONDS)
        # One prompt is one, however many answers are drawn from it; each answer is one.
        prompts, answers = server & first_of_id, server & ((said & TELLS) > 0)
        observe(catalog.DERIVED_SERVER_TOKENS, prompts, tokens_in, variant="input", largest=MAX_TOKENS)
        observe(catalog.DERIVED_SERVER_TOKENS, answers, tokens_out, variant="output", largest=MAX_TOKENS)
        times = self._token_times(batch, request, first, tokens_out)
        observe(catalog.DERIVED_SERVER_TOKEN_TIME, answers, times, largest=MAX_SECONDS)
        without = np.isnan(tokens_in) & np.isnan(tokens_out) & (batch.spans["status"] != StatusCode.ERROR)
        return {
            "client": int(np.count_nonzero(client & without)),
            "server": int(np.count_nonzero(calls & without)),
        }

    def _token_times(self, batch: Batch, request: F8, first: F8, tokens: F8) -> F8:
        """Time a token after the first: as told, from the decoding time, or from what followed the first."""
        further = np.where((tokens > 1) & (tokens <= MAX_TOKENS), tokens - 1, np.nan)
        decode = batch.resolved_numbers(self._decode)
        decode = np.where(np.isnan(decode), request - first, decode)
        told = batch.resolved_numbers(self._token_time)
        times: F8 = np.where(np.isnan(told), decode / further, told)
        return times

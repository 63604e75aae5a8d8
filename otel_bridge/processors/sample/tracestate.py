"""The `ot` member of a W3C tracestate: the threshold that a span was sampled with, and explicit randomness.

Everything else in a tracestate passes as it came. An `ot` member that is not written as OpenTelemetry has it
says nothing, and is replaced.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_bridge.processors.sample.threshold import decoded, encoded, randomness_of
from otel_bridge.wire import sized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch

_FIELD = Span.TRACE_STATE_FIELD_NUMBER
_TAG = _FIELD << 3 | 2

_MEMBER = re.compile(rb"[a-z][a-z0-9]*:[A-Za-z0-9._-]*(;[a-z][a-z0-9]*:[A-Za-z0-9._-]*)*")
_LONGEST_MEMBER = 256
_MOST_MEMBERS = 32
_LONGEST_CACHED = 512
_CACHED = 4096


class Sampling(NamedTuple):
    """What a tracestate says about sampling.

    Attributes:
        threshold: with which the span was sampled so far; None: nobody says.
        randomness: instead of the trace id's; None: the trace id's.
    """

    threshold: int | None
    randomness: int | None


class _Parts(NamedTuple):
    ours: dict[bytes, bytes]
    others: list[bytes]


def read(state: bytes) -> Sampling:
    """What a tracestate says; nothing where it cannot be read."""
    return _read_cached(state) if len(state) <= _LONGEST_CACHED else _read(state)


def write(state: bytes, threshold: int | None) -> bytes:
    """The tracestate with another threshold, or without one; `ot` comes first, since it was changed last."""
    return _write_cached(state, threshold) if len(state) <= _LONGEST_CACHED else _write(state, threshold)


def put_first(batch: Batch, rows: NDArray[np.integer], threshold: int) -> None:
    """Give each of `rows`, which have no tracestate, one with this threshold."""
    field = sized(_FIELD, write(b"", threshold))
    batch.append_fields(rows.astype("<u4"), [field] * len(rows))


def put(batch: Batch, rows: Sequence[int], states: Sequence[bytes]) -> None:
    """Give each of `rows`, which have a tracestate, another; empty for none."""
    replaced: list[tuple[int, int, bytes]] = []
    appended: list[tuple[int, bytes]] = []
    spans = batch.spans[np.asarray(rows, np.intp)]
    offs, lens = spans["state_off"].tolist(), spans["state_len"].tolist()
    for row, off, size, state in zip(rows, offs, lens, states, strict=True):
        end = off + size
        begin = end - len(sized(_FIELD, batch.data[off:end]))
        # A tag or a length that was written longer than need be is not looked for: protobuf takes the last of
        # several fields, and that is the one that is appended.
        if batch.data[begin] == _TAG:
            replaced.append((begin, end - begin, sized(_FIELD, state) if state else b""))
        else:
            appended.append((row, sized(_FIELD, state)))
    if replaced:
        begins, sizes, fields = zip(*replaced, strict=True)
        batch.replace_fields(np.array(begins, "<u4"), np.array(sizes, "<u4"), fields)
    if appended:
        owners, fields = zip(*appended, strict=True)
        batch.append_fields(np.array(owners, "<u4"), fields)


def _read(state: bytes) -> Sampling:
    ours = _parts(state).ours
    return Sampling(decoded(ours.get(b"th", b"")), randomness_of(ours.get(b"rv", b"")))


def _write(state: bytes, threshold: int | None) -> bytes:
    ours, others = _parts(state)
    given = {b"rv": ours.pop(b"rv", None), b"th": None}
    ours.pop(b"th", None)
    if threshold is not None:
        given[b"th"] = encoded(threshold).encode()
    pieces = [key + b":" + value for key, value in given.items() if value is not None]
    for key, value in ours.items():
        piece = key + b":" + value
        if len(b";".join([*pieces, piece])) <= _LONGEST_MEMBER:
            pieces.append(piece)
    mine = [b"ot=" + b";".join(pieces)] if pieces else []
    return b",".join([*mine, *others][:_MOST_MEMBERS])


def _parts(state: bytes) -> _Parts:
    ours: dict[bytes, bytes] = {}
    others = []
    for member in state.split(b","):
        stripped = member.strip(b" \t")
        key, equals, value = stripped.partition(b"=")
        if key != b"ot":
            if stripped:
                others.append(stripped)
        elif equals and len(value) <= _LONGEST_MEMBER and _MEMBER.fullmatch(value):
            ours = dict(piece.split(b":", 1) for piece in value.split(b";"))
    return _Parts(ours, others)


_read_cached = lru_cache(_CACHED)(_read)
_write_cached = lru_cache(_CACHED)(_write)

"""Attributes that steps before this one have added: not in the request yet, and they leave all the same."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.edits import Insert

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.batch import Batch

_TEXTUAL = ("text", "slice", "const")


def is_textual(insert: Insert) -> bool:
    """Whether strings are added; encoded fields ("raw") are the business of the step that encodes them."""
    return insert.kind in _TEXTUAL


def longest(insert: Insert) -> int:
    """Bytes of the longest string that is added."""
    if insert.kind == "const":
        return len(insert.blob)
    lens = insert.lens if insert.kind == "slice" else insert.values
    return int(lens.max(initial=0))


def changed(batch: Batch, insert: Insert, how: Callable[[bytes], bytes]) -> Insert:
    """The insert with each of its strings changed; `how` returns the same object where it changes nothing."""
    before = _texts(batch, insert)
    after = [how(text) for text in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return insert
    if insert.kind == "const":
        return insert._replace(blob=after[0])
    lens = np.fromiter(map(len, after), "<u4", len(after))
    return Insert("text", insert.key, insert.rows, lens, np.empty(0, "<u4"), b"".join(after))


def _texts(batch: Batch, insert: Insert) -> list[bytes]:
    if insert.kind == "const":
        return [insert.blob]
    if insert.kind == "slice":
        places = zip(insert.values.tolist(), insert.lens.tolist(), strict=True)
        return [batch.data[off : off + length] for off, length in places]
    ends = accumulate(insert.values.tolist(), initial=0)
    return [insert.blob[start:end] for start, end in pairwise(ends)]

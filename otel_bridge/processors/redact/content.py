"""Finding content in a batch: every place where a prompt or an answer may stand."""

from __future__ import annotations

from bisect import bisect_right
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge.model import Scope
from otel_bridge.vocabulary import CONTENT, HARMLESS_LEAVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.processors.redact.config import RedactConfig


class Slots:
    """A set of columns, with a quick look whether a batch has any of them."""

    def __init__(self, slots: Iterable[int]) -> None:
        self.slots = sorted(set(slots))
        # Slots asked for one after the other are neighbours, so a few comparisons see hundreds of columns.
        runs = groupby(enumerate(self.slots), key=lambda pair: pair[1] - pair[0])
        self._runs = [(run[0][1], run[-1][1] + 1) for run in (list(group) for _, group in runs)]
        self._member = np.zeros(max(self.slots, default=-1) + 1, np.bool_)
        self._member[self.slots] = True

    def present(self, batch: Batch) -> list[int]:
        """The slots that a batch has records of."""
        starts = batch.starts
        found: list[int] = []
        for first, end in self._runs:
            slot = first
            while starts[slot] != starts[end]:
                # Starts ascend: the last slot that begins where this one does is the first that is not empty.
                slot = bisect_right(starts, starts[slot], slot, end) - 1
                found.append(slot)
                slot += 1
        return found

    def repeated(self, batch: Batch) -> NDArray[np.void]:
        """The records of repeated keys that belong to these columns."""
        repeated = batch.duplicates
        if not len(repeated):
            return repeated
        slots = repeated["slot"]
        inside = slots < len(self._member)
        return repeated[inside & self._member[np.where(inside, slots, 0)]]


class ContentColumns:
    """Every attribute that carries content, in spans, events, links, scopes and resources.

    The vocabulary's list, with what the user added and without what the user allowed. A key that is
    content on a span is content wherever else it stands.
    """

    def __init__(self, config: RedactConfig, columns: PlanBuilder) -> None:
        allowed = set(config.allow)
        exact: list[int] = []
        self._prefixes: set[int] = set()
        self._events: dict[int, set[bytes]] = {}
        keys = {key.key for key in CONTENT if key.scope is Scope.SPAN and not key.prefix} | set(config.keys)
        prefixes = {key.key for key in CONTENT if key.prefix} | set(config.prefixes)
        everywhere = {key.key for key in CONTENT if key.scope is Scope.EVENT and not key.event}
        for scope in Scope:
            in_scope = keys | everywhere if scope is Scope.EVENT else keys
            exact += [columns.want(key, scope=scope) for key in sorted(in_scope - allowed)]
            self._prefixes |= {columns.want(key, scope=scope, prefix=True) for key in sorted(prefixes)}
        for key in CONTENT:
            if key.event and key.key not in allowed | keys | everywhere:
                slot = columns.want(key.key, scope=Scope.EVENT)
                self._events.setdefault(slot, set()).add(key.event.encode())
        self._keys = keys | everywhere
        self._beginnings = tuple(sorted(prefixes))
        self._allowed = allowed
        self._allowed_bytes = {key.encode() for key in allowed}
        self._slots = Slots([*exact, *self._prefixes, *self._events])

    def names(self, key: str) -> bool:
        """Whether an attribute of this key is content."""
        return key not in self._allowed and (key in self._keys or key.startswith(self._beginnings))

    def find(self, batch: Batch) -> NDArray[np.void] | None:
        """The records of all content in a batch, each attribute once; None when there is none."""
        present = self._slots.present(batch)
        repeated = self._slots.repeated(batch)
        if not present and not len(repeated):
            return None
        found = [self._meant(batch, slot, batch.column(slot)) for slot in present]
        if len(repeated):
            found += [
                self._meant(batch, int(slot), repeated[repeated["slot"] == slot])
                for slot in np.unique(repeated["slot"])
            ]
        records = np.concatenate(found)
        if not len(records):
            return None
        if len(found) == 1:
            return records
        _, first = np.unique(records["kv_off"], return_index=True)
        return records if len(first) == len(records) else records[first]

    def _meant(self, batch: Batch, slot: int, records: NDArray[np.void]) -> NDArray[np.void]:
        """Of a column's records those that are content indeed."""
        if slot in self._prefixes and self._allowed_bytes:
            return records[[key not in self._allowed_bytes for key in _keys(batch, records)]]
        events = self._events.get(slot)
        if events is not None:
            # An event whose name cannot be told may be any of them.
            return records[[name is None or name in events for name in batch.event_names(records)]]
        return records


def harmless(batch: Batch, records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which records say nothing of the content although they stand among it: roles, types, ids."""
    leaves = (key.rpartition(b".")[2] for key in _keys(batch, records))
    return np.fromiter((leaf in _HARMLESS for leaf in leaves), np.bool_, len(records))


_HARMLESS = frozenset(leaf.encode() for leaf in HARMLESS_LEAVES)


def _keys(batch: Batch, records: NDArray[np.void]) -> Sequence[bytes]:
    data = batch.data
    ends = records["key_off"] + records["key_len"]
    return [data[a:b] for a, b in zip(records["key_off"].tolist(), ends.tolist(), strict=True)]

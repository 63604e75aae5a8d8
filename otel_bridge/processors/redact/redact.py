"""The last step: what of prompts, answers and credentials leaves the node, and how long a value may be."""

from __future__ import annotations

import hashlib
import secrets
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from otel_bridge import catalog
from otel_bridge.batch import STATUS_MESSAGE
from otel_bridge.model import Scope, ValueType
from otel_bridge.processors.redact import exceptions, inserts
from otel_bridge.processors.redact.changes import Changes
from otel_bridge.processors.redact.content import ContentColumns, Slots, harmless
from otel_bridge.processors.redact.patterns import Masker
from otel_bridge.processors.redact.truncate import truncated
from otel_bridge.processors.redact.values import as_text, attributes, raw, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch, PlanBuilder
    from otel_bridge.edits import Insert
    from otel_bridge.processors.redact.config import RedactConfig
    from otel_bridge.telemetry import Telemetry

EXCEPTION_KEYS = ("exception.message", "exception.stacktrace", "error.message", STATUS_MESSAGE)
_OF_A_SPAN = (Scope.SPAN, Scope.EVENT)
_HASH_BYTES = 16
_ACTIONS = ("drop", "hash", "mask", "truncate")


class Redact:
    """Reads the columns of everything that may hold content; see README.md for what it does with them."""

    def __init__(self, config: RedactConfig, columns: PlanBuilder, telemetry: Telemetry) -> None:
        """Ask for the columns.

        Args:
            config: what to do.
            columns: where they are asked for.
            telemetry: where it is counted.
        """
        custom = [(pattern.name, pattern.regex, pattern.replacement) for pattern in config.custom_patterns]
        self._masker = Masker(config.patterns, custom)
        self._action = config.content
        self._content: ContentColumns | None = None
        if config.content != "keep" or self._masker:
            self._content = ContentColumns(config, columns)
        self._exception_action = "keep" if config.content == "keep" else config.exceptions
        keys = EXCEPTION_KEYS if self._exception_action != "keep" else ()
        self._exceptions = _columns(columns, keys, _OF_A_SPAN)
        self._named = _columns(columns, config.pattern_attributes if self._masker else ())
        self._named_keys = frozenset(config.pattern_attributes)
        self._treatments: dict[bytes, str] = {}
        self._limit = config.max_attribute_bytes
        if self._limit is not None:
            columns.want_oversized(self._limit)
        key = config.hash_key.get_secret_value().encode() if config.hash_key else secrets.token_bytes(32)
        self._key = key if len(key) <= hashlib.blake2b.MAX_KEY_SIZE else hashlib.blake2b(key).digest()
        counter = telemetry.counter(catalog.REDACT_ATTRIBUTES)
        self._actions = {action: counter.labels(action) for action in _ACTIONS}
        counter = telemetry.counter(catalog.REDACT_PATTERN_HITS)
        self._hits = {name: counter.labels(name) for name in self._masker.names}

    @property
    def idle(self) -> bool:
        """Whether the configuration leaves nothing to do on any batch."""
        looks = self._content is not None or bool(self._masker) or self._exception_action != "keep"
        return not looks and self._limit is None

    def process(self, batch: Batch) -> None:
        """Note the edits of one batch."""
        changes = Changes(batch)
        found = self._content.find(batch) if self._content is not None else None
        hits: dict[str, int] = {}
        self._treat_exceptions(changes, found)
        if found is not None:
            self._treat_content(changes, found, hits)
        for slot in self._named.present(batch):
            self._mask(changes, changes.left(batch.column(slot)), hits)
        self._mask(changes, changes.left(self._named.repeated(batch)), hits)
        if batch.inserts:
            batch.inserts = list(self._inserts(changes, hits))
        if self._limit is not None:
            changes.truncate(self._limit)
        changes.commit()
        for action, count in changes.actions.items():
            self._actions[action].inc(count)
        for name, count in hits.items():
            self._hits[name].inc(count)

    def _treat_content(self, changes: Changes, found: NDArray[np.void], hits: dict[str, int]) -> None:
        if self._action == "drop":
            changes.drop(found)
        elif self._action == "hash":
            data = changes.batch.data
            found = found[(found["type"] != ValueType.EMPTY) & ~harmless(changes.batch, found)]
            for attribute in attributes(found):
                changes.set_text("hash", attribute, self._hash(raw(data, attribute)))
        else:
            self._mask(changes, found, hits)

    def _inserts(self, changes: Changes, hits: dict[str, int]) -> Iterator[Insert]:
        """What earlier steps added, as it may leave."""
        batch = changes.batch
        for given in list(batch.inserts):
            insert = given
            if not inserts.is_textual(given):
                yield given
                continue
            treatment = self._treatment(given.key)
            if treatment == "drop":
                changes.actions["drop"] += len(given.rows)
                continue
            if treatment == "hash":
                insert = inserts.changed(batch, insert, self._hash)
            elif treatment == "mask":
                insert = inserts.changed(batch, insert, lambda text: self._masker.mask(text, hits))
            if insert is not given:
                changes.actions[treatment] += len(given.rows)
            if self._limit is not None and inserts.longest(insert) > self._limit:
                insert = inserts.changed(batch, insert, partial(truncated, limit=self._limit))
            yield insert

    def _treatment(self, key: bytes) -> str:
        """What is done to an attribute of this key; looked up once for each key that steps add."""
        found = self._treatments.get(key)
        if found is None:
            content = self._content is not None and self._content.names(key.decode())
            masked = self._action == "keep" if content else key.decode() in self._named_keys
            found = self._treatments[key] = (
                "mask" if masked and self._masker else self._action if content else "keep"
            )
        return found

    def _hash(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._key, digest_size=_HASH_BYTES).hexdigest().encode()

    def _mask(self, changes: Changes, records: NDArray[np.void], hits: dict[str, int]) -> None:
        data = changes.batch.data
        if self._masker.may_match([raw(data, one) for one in attributes(records) if one.may_hold_text]):
            changes.change("mask", records, lambda text: self._masker.mask(text, hits))

    def _treat_exceptions(self, changes: Changes, found: NDArray[np.void] | None) -> None:
        batch = changes.batch
        present = self._exceptions.present(batch)
        if not present:
            return
        records = np.concatenate([*map(batch.column, present), self._exceptions.repeated(batch)])
        if self._exception_action == "drop":
            changes.drop(records)
            return
        for row in np.unique(records["row"]):
            messages = records[records["row"] == row]
            pieces = exceptions.pieces_of(self._content_of(batch, found, row)) if found is not None else []
            if len(pieces) * len(messages) > exceptions.MOST_COMPARISONS:
                changes.drop(messages)
            else:
                changes.change("mask", messages, partial(exceptions.masked, pieces=pieces))

    def _content_of(self, batch: Batch, found: NDArray[np.void], row: int) -> Iterator[bytes]:
        """The content of one span, its events included."""
        wants = batch.plan.wants
        for attribute in attributes(found[found["row"] == row]):
            if attribute.may_hold_text and wants[attribute.slot].scope in _OF_A_SPAN:
                yield as_text(read(batch.data, attribute))


def _columns(columns: PlanBuilder, keys: tuple[str, ...], scopes: Iterable[Scope] = tuple(Scope)) -> Slots:
    return Slots(columns.want(key, scope=scope) for scope in scopes for key in keys)

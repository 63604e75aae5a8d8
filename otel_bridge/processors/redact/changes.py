"""What becomes of the attributes of one batch: collected step by step, noted in the batch at the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from otel_bridge import catalog
from otel_bridge.processors.redact.truncate import truncated
from otel_bridge.processors.redact.values import (
    as_text,
    attributes,
    change_strings,
    encoded_int,
    encoded_text,
    raw,
    read,
)
from otel_bridge.wire import sized, varint

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch
    from otel_bridge.processors.redact.values import Attribute


_STATUS_MESSAGE = bytes((2 << 3 | 2,))
"""The tag of Status.message; attributes of spans, events, links, scopes and resources have others."""


class Changes:
    """Several steps may touch one attribute; it gets one edit.

    Attributes:
        actions: attributes changed, by what was done to them.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.actions: Counter[str] = Counter()
        self._cut: list[NDArray[np.uint32]] = []
        # By where the attribute begins: what it is, its new value (an encoded AnyValue), its bytes before.
        self._attributes: dict[int, Attribute] = {}
        self._values: dict[int, bytes] = {}
        self._before: dict[int, int] = {}

    def drop(self, records: NDArray[np.void]) -> None:
        """Remove attributes."""
        self.batch.cut(records)
        self._cut.append(records["kv_off"])
        self.actions["drop"] += len(records)

    def left(self, records: NDArray[np.void]) -> NDArray[np.void]:
        """Of some records those that have not been removed."""
        if not self._cut or not len(records):
            return records
        return records[~np.isin(records["kv_off"], np.concatenate(self._cut))]

    def set_text(self, action: str, attribute: Attribute, text: bytes) -> None:
        """Make an attribute a string."""
        self._set(action, attribute, encoded_text(text))

    def change(self, action: str, records: NDArray[np.void], how: Callable[[bytes], bytes]) -> None:
        """Change the strings of attributes; `how` returns the same object where it changes nothing.

        A value too deep to be read is removed: what cannot be looked at must not leave.
        """
        unreadable = []
        for index, attribute in enumerate(attributes(records)):
            if attribute.is_string and attribute.kv_off not in self._values:
                before = raw(self.batch.data, attribute)
                after = how(before)
                if after is not before:
                    self.set_text(action, attribute, after)
                continue
            try:
                value = self._value(attribute)
            except DecodeError:
                unreadable.append(index)
                continue
            if change_strings(value, how):
                self._set(action, attribute, value.SerializeToString())
        if unreadable:
            self.drop(records[unreadable])

    def truncate(self, limit: int) -> None:
        """Cut whatever is longer than `limit` bytes; beside it stands how long it was."""
        for attribute in attributes(self.left(self.batch.oversized)):
            self._attributes.setdefault(attribute.kv_off, attribute)
        for at, attribute in self._attributes.items():
            text = as_text(self._value(attribute))
            if len(text) > limit:
                self._before[at] = len(text)
                self.set_text("truncate", attribute, truncated(text, limit))

    def commit(self) -> None:
        """Note the edits."""
        if not self._values:
            return
        changed = [self._attributes[at] for at in self._values]
        self.batch.replace_fields(
            np.array([attribute.kv_off for attribute in changed], "<u4"),
            np.array([attribute.kv_len for attribute in changed], "<u4"),
            [self._fields(attribute, self._values[attribute.kv_off]) for attribute in changed],
        )

    def _value(self, attribute: Attribute) -> AnyValue:
        changed = self._values.get(attribute.kv_off)
        return read(self.batch.data, attribute) if changed is None else AnyValue.FromString(changed)

    def _set(self, action: str, attribute: Attribute, value: bytes) -> None:
        self._values[attribute.kv_off] = value
        self._attributes[attribute.kv_off] = attribute
        self.actions[action] += 1

    def _fields(self, attribute: Attribute, value: bytes) -> bytes:
        """What stands instead of an attribute: the changed one, and what is told beside it."""
        data = self.batch.data
        key = data[attribute.key_off : attribute.key_off + attribute.key_len]
        # Attributes have another field number in spans, events and resources; it is that of what stood here.
        # The low seven bits hold the whole tag, also where a sender wrote it longer.
        tag = bytes((data[attribute.kv_off] & 0x7F,))
        if tag == _STATUS_MESSAGE:
            return (
                tag + value[1:]
            )  # Status.message and AnyValue.string_value differ in nothing but the number
        fields = _key_value(tag, key, value)
        before = self._before.get(attribute.kv_off)
        if before is not None:
            mark = catalog.TRUNCATED_TEMPLATE.format(key=key.decode()).encode()
            fields += _key_value(tag, mark, encoded_int(before))
        return fields


def _key_value(tag: bytes, key: bytes, value: bytes) -> bytes:
    pair = sized(1, key) + sized(2, value)
    return tag + varint(len(pair)) + pair

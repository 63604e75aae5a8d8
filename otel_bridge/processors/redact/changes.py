"""What becomes of the attributes of one batch: collected step by step, noted in the batch at the end."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_bridge import catalog
from otel_bridge.model import ValueType
from otel_bridge.processors.redact.truncate import truncated
from otel_bridge.processors.redact.values import as_text, change_strings, raw, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from otel_bridge.batch import Batch


class Changes:
    """Several steps may touch one attribute; it gets one edit.

    Attributes:
        actions: attributes changed, by what was done to them.
    """

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.actions: Counter[str] = Counter()
        self._cut: list[NDArray[np.uint32]] = []
        self._values: dict[int, AnyValue] = {}
        self._records: dict[int, np.void] = {}
        self._before: dict[int, int] = {}

    def drop(self, records: NDArray[np.void]) -> None:
        """Remove attributes."""
        self.batch.cut(records)
        self._cut.append(records["kv_off"])
        self.actions["drop"] += len(records)

    def set_text(self, action: str, record: np.void, text: bytes) -> None:
        """Make an attribute a string."""
        self._set(action, record, AnyValue(string_value=text.decode()))

    def change(self, action: str, records: NDArray[np.void], how: Callable[[bytes], bytes]) -> None:
        """Change the strings of attributes; `how` returns the same object where it changes nothing.

        A value too deep to be read is removed: what cannot be looked at must not leave.
        """
        unreadable = []
        for index, record in enumerate(records):
            at = int(record["kv_off"])
            if at not in self._values and record["type"] == ValueType.STRING:
                before = raw(self.batch, record)
                after = how(before)
                if after is not before:
                    self.set_text(action, record, after)
                continue
            try:
                value = self._values.get(at) or read(self.batch, record)
            except DecodeError:
                unreadable.append(index)
                continue
            if change_strings(value, how):
                self._set(action, record, value)
        if unreadable:
            self.drop(records[unreadable])

    def left(self, records: NDArray[np.void]) -> NDArray[np.void]:
        """Of some records those that have not been removed."""
        if not self._cut or not len(records):
            return records
        return records[~np.isin(records["kv_off"], np.concatenate(self._cut))]

    def truncate(self, limit: int) -> None:
        """Cut whatever is longer than `limit` bytes; beside it stands how long it was."""
        for record in self.left(self.batch.oversized):
            self._records.setdefault(int(record["kv_off"]), record)
        for at, record in self._records.items():
            value = self._values.get(at)
            text = as_text(read(self.batch, record) if value is None else value)
            if len(text) > limit:
                self._before[at] = len(text)
                self._set("truncate", record, AnyValue(string_value=truncated(text, limit).decode()))

    def commit(self) -> None:
        """Note the edits."""
        records = [self._records[at] for at in self._values]
        self.batch.replace_fields(
            np.array([record["kv_off"] for record in records], "<u4"),
            np.array([record["kv_len"] for record in records], "<u4"),
            [self._fields(at, value) for at, value in self._values.items()],
        )

    def _fields(self, at: int, value: AnyValue) -> bytes:
        """What stands instead of an attribute: the changed one, and what is told beside it."""
        data, record = self.batch.data, self._records[at]
        start = int(record["key_off"])
        key = data[start : start + int(record["key_len"])].decode()
        attributes = [KeyValue(key=key, value=value)]
        if at in self._before:
            mark = catalog.TRUNCATED_TEMPLATE.format(key=key)
            attributes.append(KeyValue(key=mark, value=AnyValue(int_value=self._before[at])))
        # Attributes have another field number in spans, events and resources; it is that of what stood here.
        # The low seven bits hold the whole tag, also where a sender wrote it longer.
        tag = bytes((data[at] & 0x7F,))
        return b"".join(tag + Resource(attributes=[one]).SerializeToString()[1:] for one in attributes)

    def _set(self, action: str, record: np.void, value: AnyValue) -> None:
        at = int(record["kv_off"])
        self._values[at] = value
        self._records[at] = record
        self.actions[action] += 1

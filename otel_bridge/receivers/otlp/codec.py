"""OTLP trace bytes into a `Batch`, and its edits back into bytes: the native codec, and the choice of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from otel_bridge.batch import ATTRIBUTE, SCOPE, SPAN, Batch
from otel_bridge.errors import StartError
from otel_bridge.receivers.otlp.items import ITEMS
from otel_bridge.receivers.otlp.reference import ReferenceCodec

if TYPE_CHECKING:
    from types import ModuleType

    from otel_bridge._native import wire as native
    from otel_bridge.batch import Plan
    from otel_bridge.contracts import Codec
    from otel_bridge.edits import Insert, Replacement
    from otel_bridge.model import Signal

_PLANS_KEPT = 8
"""Compiled plans kept: that of the running steps, of those a reload replaced, and of an exporter's splits."""


class NativeCodec:
    """Reads and splices in Rust; see `otel_bridge/_native`.

    Raises:
        ImportError: the native module was not built for this platform.
    """

    name = "native"

    def __init__(self) -> None:
        from otel_bridge._native import wire  # noqa: PLC0415 (where no wheel fits it is missing)

        sizes = (SPAN.itemsize, SCOPE.itemsize, ATTRIBUTE.itemsize)
        if sizes != wire.RECORD_SIZES:
            raise ImportError(f"native records have {wire.RECORD_SIZES} bytes, expected {sizes}: rebuild")
        self._wire: ModuleType = wire
        self._plans: dict[int, tuple[Plan, native.Plan]] = {}

    def scan(self, data: bytes, plan: Plan) -> Batch:
        """Read a request; see `contracts.Codec`."""
        kept = self._plans.get(id(plan))
        compiled = self._compile(plan) if kept is None else kept[1]
        data, spans, scopes, attributes, starts, present, resources, mended = self._wire.scan(data, compiled)
        return Batch(
            data,
            plan,
            self,
            np.frombuffer(spans, SPAN),
            np.frombuffer(scopes, SCOPE),
            np.frombuffer(attributes, ATTRIBUTE),
            starts,
            frozenset(present),
            resources,
            mended,
        )

    def splice(self, batch: Batch) -> bytes:
        """Work the edits in; see `contracts.Codec`."""
        out: bytes = self._wire.splice(
            batch.data,
            len(batch.spans),
            _gone(batch),
            [_insert(insert) for insert in batch.inserts],
            [records.tobytes() for records in batch.cuts],
            [_replacement(replacement) for replacement in batch.replacements],
        )
        return out

    def count_items(self, signal: Signal, data: bytes) -> int:
        """Count without reading; see `contracts.Codec`."""
        count: int = self._wire.count_items(data, ITEMS[signal])
        return count

    def _compile(self, plan: Plan) -> native.Plan:
        compiled: native.Plan = self._wire.Plan(
            [(want.scope.value, want.key.encode(), want.prefix) for want in plan.wants], plan.longer_than
        )
        while len(self._plans) >= _PLANS_KEPT:
            self._plans.pop(next(iter(self._plans)), None)
        # The plan is kept beside what it was compiled to, so that no other plan can get its id.
        self._plans[id(plan)] = plan, compiled
        return compiled


def choose_codec(prefer: Literal["auto", "native", "reference"]) -> tuple[Codec, str]:
    """The codec to use, and why, for a person.

    Raises:
        StartError: the native codec is asked for by name and is not there.
    """
    if prefer == "reference":
        return ReferenceCodec(), "asked for by service.codec"
    try:
        native_codec = NativeCodec()
    except ImportError as error:
        if prefer == "native":
            raise StartError(
                f"service.codec is native, but the native codec cannot be loaded: {error}; install a wheel "
                "built for this platform, or a Rust compiler and then `pip install --force-reinstall "
                "--no-binary otel-bridge otel-bridge`, or set service.codec to auto"
            ) from error
        return (
            ReferenceCodec(),
            f"the native codec cannot be loaded ({error}); spans cost far more CPU",
        )
    return native_codec, "asked for by service.codec" if prefer == "native" else "installed"


def _gone(batch: Batch) -> bytes:
    rejected = batch.spans["reject"]
    if batch.dropped is not None:
        return (batch.dropped | (rejected > 0)).tobytes()
    gone: bytes = rejected.tobytes()
    return gone


def _insert(insert: Insert) -> tuple[str, bytes, bytes, bytes, bytes, bytes]:
    return (
        insert.kind,
        insert.key,
        insert.rows.tobytes(),
        insert.values.tobytes(),
        insert.lens.tobytes(),
        insert.blob,
    )


def _replacement(replacement: Replacement) -> tuple[bytes, bytes, bytes, bytes]:
    return (
        replacement.offs.tobytes(),
        replacement.lens.tobytes(),
        replacement.sizes.tobytes(),
        replacement.blob,
    )

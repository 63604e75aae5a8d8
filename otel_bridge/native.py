"""Whether the native crate does the work, or its reference in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def kernels(reference: ModuleType, *needed: str) -> ModuleType:
    """The crate; its reference where it is not installed, or lacks a name that is needed: an older build."""
    wire: ModuleType
    try:
        from otel_bridge._native import wire  # noqa: PLC0415 (where no wheel fits it is missing)
    except ImportError:
        return reference
    return wire if all(hasattr(wire, name) for name in needed) else reference

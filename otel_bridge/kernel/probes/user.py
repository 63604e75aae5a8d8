"""Functions of programs, by configuration: numbered for the kernel, named for everybody else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from otel_bridge.events import COMMON
from otel_bridge.kernel.config import FieldConfig, FunctionConfig, HandOverConfig, UserConfig
from otel_bridge.kernel.probes.base import Probe, Uprobe, nanoseconds
from otel_bridge.kernel.records import USER_EVENT, USER_FIELD, USER_PROBE, USER_RESULT, USER_STACK_DEPTH
from otel_bridge.model import KernelEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

PRESETS = Path(__file__).parents[1] / "presets"

_SPECIAL: dict[int | str, int] = {"return": USER_RESULT, "stack_depth": USER_STACK_DEPTH}

# Integers wrap around beyond 64 bits and say nothing. Doubles tell, and their rounding is far from doubling.
_LARGEST_PRODUCT = 2.0**62

PROBE = Probe(
    name="user",
    gives="calls of configured functions, with their arguments, on the span that asked for them",
    record=USER_EVENT,
    kinds=frozenset({KernelEventKind.USER}),
    config_of=lambda config: config.user,
)


def preset(name: str) -> tuple[FunctionConfig, ...]:
    """The functions of a preset that ships with the bridge."""
    document = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())
    return tuple(FunctionConfig.model_validate(function) for function in document)


@dataclass(frozen=True)
class Functions:
    """The configured functions; their place here is their number in the kernel."""

    all: tuple[FunctionConfig, ...]

    @classmethod
    def of(cls, config: UserConfig) -> Functions:
        """Those of the presets, then the user's own."""
        return cls((*(function for name in config.presets for function in preset(name)), *config.functions))

    @cached_property
    def _groups(self) -> dict[str, int]:
        """Groups of numbers that spans are handed over by; 0 is none."""
        overs = [over for function in self.all for over in (function.gives, function.takes) if over]
        return {group: number for number, group in enumerate(sorted({over.group for over in overs}), 1)}

    def table(self) -> Iterator[tuple[int, NDArray[np.void]]]:
        """What the kernel is told of each (dtype USER_PROBE), by its number."""
        for number, function in enumerate(self.all):
            row = np.zeros((), USER_PROBE)
            row["threshold_ns"] = nanoseconds(function.threshold)
            row["silent"] = not function.event
            names = list(function.fields)
            for i, field in enumerate(function.fields.values()):
                row["fields"][i] = _field(field, names)
            row["gives"], row["gives_group"] = self._hand_over(function, function.gives)
            row["takes"], row["takes_group"] = self._hand_over(function, function.takes)
            yield number, row

    def _hand_over(self, function: FunctionConfig, over: HandOverConfig | None) -> tuple[int, int]:
        if over is None:
            return 0, 0
        return 1 + list(function.fields).index(over.field), self._groups[over.group]

    def places(self) -> Iterator[tuple[str, tuple[Uprobe, ...]]]:
        """For each function the pattern of its file's name, and what is attached to it."""
        for number, function in enumerate(self.all):
            yield function.library, _uprobes(number, function)

    def split(self, records: NDArray[np.void]) -> Iterator[tuple[str, NDArray[np.void]]]:
        """Events by function, each with the fields that the function's configuration names.

        Those of a function whose fields do not all have a value come as several arrays.
        """
        for number in np.unique(records["probe"]).tolist():
            if number >= len(self.all):  # of a function that was configured a moment ago
                continue
            function = self.all[number]
            for part in _named(function, records[records["probe"] == number]):
                yield function.name, part


def _size(field: FieldConfig) -> int:
    return 1 if field.type == "bool" else int(field.type[1:]) // 8


def _is_signed(field: FieldConfig) -> bool:
    return field.type.startswith("i")


def _field(field: FieldConfig, names: list[str]) -> NDArray[np.void]:
    row = np.zeros((), USER_FIELD)
    row["argument"] = _SPECIAL.get(field.argument, field.argument)
    row["size"], row["is_signed"] = _size(field), _is_signed(field)
    row["steps"] = len(field.at)
    row["offsets"][: len(field.at)] = field.at
    row["falls"] = field.falls
    if field.index is not None:
        row["stride"], row["index"] = field.index.times, 1 + names.index(field.index.field)
    return row


def _uprobes(number: int, function: FunctionConfig) -> tuple[Uprobe, ...]:
    if function.usdt:
        provider, _, name = function.usdt.partition(":")
        return (Uprobe("user_usdt", "", required=True, usdt=(provider, name), cookie=number),)
    place: Mapping[str, Any] = {
        "symbol": function.symbol,
        "offset": function.offset,
        "required": True,
        "begins": bytes.fromhex(function.begins),
        "cookie": number,
    }
    if function.latency:
        return Uprobe("user_begin", **place), Uprobe("user_return", **{**place, "at_return": True})
    return (Uprobe("user_call", **place),)


@dataclass(frozen=True)
class _Column:
    """A field of some events.

    Attributes:
        values: of 64 bits.
        known: false where it has no value.
    """

    values: NDArray[Any]
    known: NDArray[np.bool_]


def _named(function: FunctionConfig, records: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    """Events with their fields by name; those that lack a value apart, and without the field."""
    columns = {
        name: column for name, column in _columns(function, records).items() if function.fields[name].told
    }
    known = np.array([column.known for column in columns.values()])
    if known.all():
        yield _structured(records, {name: column.values for name, column in columns.items()})
        return
    for which in np.unique(known, axis=1).T:
        rows = (known == which[:, np.newaxis]).all(axis=0)
        told = {
            name: column.values[rows]
            for (name, column), has in zip(columns.items(), which, strict=True)
            if has
        }
        yield _structured(records[rows], told)


def _structured(records: NDArray[np.void], fields: Mapping[str, NDArray[Any]]) -> NDArray[np.void]:
    kinds = [(name, values.dtype.str) for name, values in fields.items()]
    out = np.zeros(len(records), np.dtype([*COMMON.descr, *kinds]))
    for name in COMMON.names or ():
        out[name] = records[name]
    for name, values in fields.items():
        out[name] = values
    return out


def _columns(function: FunctionConfig, records: NDArray[np.void]) -> dict[str, _Column]:
    found: dict[str, _Column] = {}
    for i, (name, field) in enumerate(function.fields.items()):
        # The kernel extended the sign to 64 bits.
        read = records["fields"][:, i].view("<i8" if _is_signed(field) or field.falls else "<u8")
        found[name] = _computed(field, read, found)
    return found


def _computed(field: FieldConfig, value: NDArray[Any], earlier: Mapping[str, _Column]) -> _Column:
    known = np.ones(len(value), np.bool_)
    for name in field.operands:
        known &= earlier[name].known
    if field.operands:
        value = value.view("<i8")
    if field.less is not None:
        value = value - earlier[field.less].values.view("<i8")
    if field.plus is not None:
        value = value + earlier[field.plus].values.view("<i8")
    if field.times:
        size = value.astype(np.float64)
        for name in field.times:
            factor = earlier[name].values.view("<i8")
            value, size = value * factor, size * factor
        known &= np.abs(size) <= _LARGEST_PRODUCT
    return _Column(value if field.per == 1 else value // field.per, known)

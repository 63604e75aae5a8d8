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
        """Events by function, each with the fields that the function's configuration names."""
        for number in np.unique(records["probe"]).tolist():
            if number >= len(self.all):  # of a function that was configured a moment ago
                continue
            function = self.all[number]
            yield function.name, _named(function, records[records["probe"] == number])


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


def _named(function: FunctionConfig, records: NDArray[np.void]) -> NDArray[np.void]:
    # The kernel extended the sign to 64 bits.
    values = {
        name: records["fields"][:, i].view("<i8" if _is_signed(field) or field.falls else "<u8")
        for i, (name, field) in enumerate(function.fields.items())
    }
    told = {
        name: _computed(values[name], values[field.less] if field.less else None, field.per)
        for name, field in function.fields.items()
        if field.told
    }
    kinds = [(name, value.dtype.str) for name, value in told.items()]
    out = np.zeros(len(records), np.dtype([*COMMON.descr, *kinds]))
    for name in COMMON.names or ():
        out[name] = records[name]
    for name, value in told.items():
        out[name] = value
    return out


def _computed(value: NDArray[Any], less: NDArray[Any] | None, per: int) -> NDArray[Any]:
    if less is not None:
        value = value.view("<i8") - less.view("<i8")
    return value if per == 1 else value // per

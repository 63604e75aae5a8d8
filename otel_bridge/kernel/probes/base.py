"""What a probe is: data that the loader, the reader and `doctor` work from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from otel_bridge.kernel.config import ProbesConfig, SwitchConfig
    from otel_bridge.kernel.records import Dtype
    from otel_bridge.model import KernelEventKind

CONFIG_SECTION = ".rodata.config"


@dataclass(frozen=True, slots=True)
class Program:
    """One program that hangs on a raw tracepoint.

    Attributes:
        name: of the program in its object.
        tracepoint: that the kernel must have.
        since: the kernel version that brought it.
        gives: what there is only with it.
        stands_in_for: another program's name; this one is loaded only where that one cannot be.
        module: of the kernel, that brings the tracepoint; empty: the kernel itself.
        by_accounts: it reads what the scheduler accounts of threads; not to be loaded where that is not told.
        called_by: a probe that calls it, from a program of its own on the same tracepoint (CALLED in
            bpf/common/core.bpf.h); where that probe is not loaded, it hangs on the tracepoint itself.
    """

    name: str
    tracepoint: str
    since: str
    gives: str
    stands_in_for: str = ""
    module: str = ""
    by_accounts: bool = False
    called_by: str = ""


@dataclass(frozen=True, slots=True)
class Uprobe:
    """One program that hangs on a function of a library.

    Attributes:
        program: its name in the object.
        symbol: the function.
        at_return: when it returns, not when it is called.
        required: a library without the function is left alone.
        offset: bytes from the symbol; without a symbol, from the file's start.
        usdt: provider and name of a static tracepoint, instead of all that.
        cookie: what the program is told about this place.
        begins: the function's first bytes; a file where it has others is left alone; empty: any.
    """

    program: str
    symbol: str
    at_return: bool = False
    required: bool = False
    offset: int = 0
    usdt: tuple[str, str] | None = None
    cookie: int = 0
    begins: bytes = b""


@dataclass(frozen=True, slots=True)
class Sums:
    """A table of sums per span.

    Attributes:
        kind: what its rows are as events.
        key: dtype of its keys.
        value: dtype of its values.
        row: dtype of key and value together, where rows are filled one after the other
            (bpf/common/rows.bpf.h); None where they are found by their key.
    """

    kind: KernelEventKind
    key: Dtype
    value: Dtype
    row: Dtype | None = None


def _no_constants(_: ProbesConfig) -> NDArray[Any] | None:
    return None


def _always(_: ProbesConfig) -> SwitchConfig | None:
    return None


def _any_uprobe(_: Uprobe, __: ProbesConfig) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Probe:
    """One object file: loaded, read and swapped as a whole.

    Attributes:
        name: of the probe, and of its object (`<name>.bpf.o`).
        gives: what it tells, for a person.
        programs: on tracepoints.
        uprobes: on functions of libraries that `library` names.
        library: pattern of the file names that uprobes go to.
        function: they also go to any other file that defines it, which has the library linked in.
        record: dtype of its ring buffer's records; None when it has no ring buffer.
        kinds: what its records may be.
        sums: its table of sums per span.
        config_of: its part of the configuration; None for the probes that others stand on.
        serves: the probes that this one is loaded for; empty when it is for itself, or for all.
        wanted_uprobe: whether a configuration asks for one of its uprobes.
        constants: the value of its `.rodata.config`.
        needs_libbpf: why the BCC back end cannot load it; empty when it can.
        optional: why a machine may do without all of its tracepoints; empty when it may not.
    """

    name: str
    gives: str
    programs: tuple[Program, ...] = ()
    uprobes: tuple[Uprobe, ...] = ()
    library: str = ""
    function: str = ""
    record: Dtype | None = None
    kinds: frozenset[KernelEventKind] = frozenset()
    sums: Sums | None = None
    config_of: Callable[[ProbesConfig], SwitchConfig | None] = _always
    wanted_uprobe: Callable[[Uprobe, ProbesConfig], bool] = _any_uprobe
    constants: Callable[[ProbesConfig], NDArray[Any] | None] = _no_constants
    serves: frozenset[str] = frozenset()
    needs_libbpf: str = ""
    optional: str = ""


def constants(dtype: Dtype, values: Mapping[str, int]) -> NDArray[Any]:
    """A structure of constants with these fields; the others are 0."""
    out = np.zeros(1, dtype)
    for name, value in values.items():
        out[name] = value
    return out


def nanoseconds(seconds: float) -> int:
    """A duration as the kernel counts it."""
    return round(seconds * 1e9)

"""What loads the probes: libbpf, or BCC where the kernel does not tell its types."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from otel_bridge.errors import BridgeError
from otel_bridge.kernel.kernel_symbols import traced
from otel_bridge.kernel.loader import object_path
from otel_bridge.libbpf import BUILD_COMMAND, uprobe_multi
from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_bridge.kernel.bcc_object import BccObject
    from otel_bridge.kernel.config import KernelConfig, ProbesConfig
    from otel_bridge.kernel.probes.base import Probe
    from otel_bridge.libbpf.core_object import Object
    from otel_bridge.libbpf.library import Library

BTF = Path("/sys/kernel/btf/vmlinux")


class Backend(Protocol):
    """Makes objects of probes, which the loader then treats alike."""

    def tracepoints(self, names: Sequence[str]) -> dict[str, bool]:
        """Which raw tracepoints the running kernel has."""

    def accounts(self) -> bool:
        """Whether programs can read what the scheduler accounts of threads."""

    def prepare(self, probes: Iterable[Probe]) -> None:
        """Do what takes long, for all probes at once; a probe that fails says so when it is opened."""

    def open(self, probe: Probe) -> Object | BccObject:
        """A probe's object, not loaded yet.

        Raises:
            BridgeError: there is none, or it cannot be made here.
        """

    def by_perf(self, config: ProbesConfig) -> bool:
        """Whether it takes perf events to attach the configured probes to functions, and so privileges."""

    def limits(self, probe: Probe, config: ProbesConfig) -> str:
        """What of a configured probe this back end cannot do; empty when nothing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which back end, and why."""

    name: Literal["libbpf", "bcc"]
    reason: str


def choose(config: KernelConfig, *, btf: bool) -> Choice:
    """The back end for a kernel with or without BTF."""
    if config.backend != "auto":
        return Choice(config.backend, f"kernel.backend: {config.backend}")
    if btf:
        return Choice("libbpf", "the kernel tells its types (BTF)")
    return Choice("bcc", f"the kernel does not tell its types: there is no {BTF} (CONFIG_DEBUG_INFO_BTF)")


def tracepoints(library: Library, names: Sequence[str]) -> dict[str, bool]:
    """Which raw tracepoints the running kernel and its modules have.

    Raises:
        LibbpfError: the kernel has no BTF.
    """
    found = library.kernel_tracepoints(names)
    # Types do not tell of modules. Symbols do, but reading them takes a tenth of a second.
    elsewhere = [name for name, there in found.items() if not there]
    return found | traced(elsewhere) if elsewhere else found


def accounts(library: Library, proc: Path = PROC) -> bool:
    """Whether programs can read what the scheduler accounts of threads.

    It does with CONFIG_SCHED_INFO, unless before Linux 5.14 it was told not to (nodelayacct): then it shows
    zeroes. Its clock is found with CONFIG_FAIR_GROUP_SCHED.

    Raises:
        LibbpfError: the kernel has no BTF.
    """
    try:
        figures = (proc / "self/schedstat").read_text().split()
    except OSError:
        return False
    return any(figure != "0" for figure in figures) and "rq" in library.kernel_members("cfs_rq")


class LibbpfBackend:
    """CO-RE objects, compiled long before."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def tracepoints(self, names: Sequence[str]) -> dict[str, bool]:
        """See `Backend`."""
        return tracepoints(self._library, names)

    def accounts(self) -> bool:
        """See `Backend`."""
        return accounts(self._library)

    def prepare(self, probes: Iterable[Probe]) -> None:
        """See `Backend`."""

    def open(self, probe: Probe) -> Object:
        """See `Backend`."""
        return uprobe_multi.open_object(self._library, built(probe))

    def by_perf(self, config: ProbesConfig) -> bool:
        """See `Backend`. Static tracepoints are libbpf's business, which attaches them one by one."""
        return not uprobe_multi.available() or any(function.usdt for function in config.user.functions)

    def limits(self, probe: Probe, config: ProbesConfig) -> str:  # noqa: ARG002 (other back ends have some)
        """See `Backend`."""
        return ""


def built(probe: Probe) -> Path:
    """A probe's compiled object.

    Raises:
        BridgeError: it is not built.
    """
    path = object_path(probe)
    if not path.exists():
        raise BridgeError(f"{path} is not built; mend with: {BUILD_COMMAND}")
    return path

"""Capabilities: which ones loading takes, which ones reading takes, and giving up the difference.

Linux keeps capabilities per thread: they must be given up before the threads are started that shall be
without them, or in each of those.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from otel_bridge.errors import BridgeError

_VERSION_3 = 0x20080522  # linux/capability.h: two 32-bit words a set
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4


class Capability(IntEnum):
    """The capabilities that matter here; the numbers are linux/capability.h's."""

    DAC_READ_SEARCH = 2
    NET_ADMIN = 12
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYS_RESOURCE = 24
    PERFMON = 38
    BPF = 39
    CHECKPOINT_RESTORE = 40


@dataclass(frozen=True, slots=True)
class Need:
    """Why a capability is needed.

    Attributes:
        capability: which.
        loading: what it does while probes are loaded; empty when nothing.
        reading: what it does afterwards; empty when nothing.
        instead: holding this one does as well.
    """

    capability: Capability
    loading: str
    reading: str
    instead: Capability | None = None


NEEDS = (
    Need(Capability.BPF, "load programs and make maps", "", Capability.SYS_ADMIN),
    Need(
        Capability.PERFMON,
        "let programs read memory; attach them to functions",
        "attach to libraries of processes that start later, before Linux 6.6",
        Capability.SYS_ADMIN,
    ),
    Need(
        Capability.SYS_PTRACE,
        "find where processes of other users keep their span",
        "the same for processes that start later",
    ),
    Need(
        Capability.DAC_READ_SEARCH,
        "open libraries in other containers",
        "the same for processes that start later",
    ),
    Need(
        Capability.CHECKPOINT_RESTORE,
        "open libraries whose file was replaced",
        "the same for processes that start later",
        Capability.SYS_ADMIN,
    ),
)


def effective(status: Path = Path("/proc/self/status")) -> frozenset[int]:
    """The numbers of the capabilities that this thread has now."""
    for line in status.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            bits = int(value, 16)
            return frozenset(number for number in range(64) if bits >> number & 1)
    raise BridgeError(f"{status} tells no CapEff")


def can_load() -> bool:
    """Whether this thread may load programs."""
    held = effective()
    return Capability.SYS_ADMIN in held or {Capability.BPF, Capability.PERFMON} <= held


def name_of(number: int) -> str:
    """As people write it, "CAP_BPF"."""
    try:
        return f"CAP_{Capability(number).name}"
    except ValueError:
        return f"capability {number}"


def needed_for_reading(held: frozenset[int], *, attach_late: bool, by_perf: bool) -> dict[Capability, str]:
    """What must be kept, each with what for.

    Args:
        held: what there is.
        attach_late: whether programs are attached to libraries of processes that start later.
        by_perf: whether that takes perf events. Kernels with the fix for CVE-2025-38466 ask CAP_SYS_ADMIN of
            them, so it is then kept where it is held. Links of their own kind (`uprobe_multi`) ask nothing.
    """
    late_by_perf = attach_late and by_perf
    only_if = {Capability.PERFMON: late_by_perf, Capability.CHECKPOINT_RESTORE: attach_late}
    kept = {
        need.capability: need.reading
        for need in NEEDS
        if need.reading and need.capability in held and only_if.get(need.capability, True)
    }
    if late_by_perf and Capability.SYS_ADMIN in held:
        kept[Capability.SYS_ADMIN] = "attach to functions, which some kernels ask it for"
    return kept


def keep_only(capabilities: frozenset[int]) -> None:
    """Give up every other capability of this thread and of the threads and programs it starts, for good.

    Raises:
        BridgeError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(what: str, result: int) -> None:
        if result:
            raise BridgeError(f"{what}: {os.strerror(ctypes.get_errno())}")

    check("clear ambient capabilities", libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    for number in sorted(effective() - capabilities):
        # Fails without CAP_SETPCAP; then there is nothing in the bounding set that could be regained by exec
        # once no new privileges are granted.
        libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    check("refuse new privileges", libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    words = [sum(1 << (number % 32) for number in capabilities if number // 32 == word) for word in (0, 1)]
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    # For each word: effective, permitted, inheritable.
    data = (ctypes.c_uint32 * 6)(words[0], words[0], 0, words[1], words[1], 0)
    check("capset", libc.capset(header, data))

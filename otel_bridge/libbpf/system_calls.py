"""System calls that neither Python nor libc has a function for: perf_event_open(2) and bpf(2)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

PERF_ATTRIBUTES = 112
"""Bytes of struct perf_event_attr as Linux 4.1 has it (PERF_ATTR_SIZE_VER5)."""

_NUMBERS = {
    "x86_64": {"bpf": 321, "perf_event_open": 298},
    "aarch64": {"bpf": 280, "perf_event_open": 241},
}
_FLAG_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC


def perf_event_open(attributes: bytearray, cpu: int) -> int:
    """An event of all processes on a CPU; its descriptor.

    Args:
        attributes: struct perf_event_attr, `PERF_ATTRIBUTES` bytes.
        cpu: which.

    Raises:
        OSError: refused, or unknown on this machine (ENOSYS).
    """
    raw = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    return _call("perf_event_open", raw, -1, cpu, -1, _FLAG_CLOEXEC)


def bpf(command: int, attributes: bytearray) -> int:
    """What the kernel answers a command about BPF: to most of them, a descriptor.

    Args:
        command: enum bpf_cmd.
        attributes: union bpf_attr; any size will do as long as what the kernel does not know is zero.

    Raises:
        OSError: refused, or unknown on this machine (ENOSYS).
    """
    raw = (ctypes.c_char * len(attributes)).from_buffer(attributes)
    return _call("bpf", command, raw, len(attributes))


def _call(name: str, *arguments: object) -> int:
    machine = platform.machine()
    number = _NUMBERS.get(machine, {}).get(name)
    if number is None:
        raise OSError(errno.ENOSYS, f"its number is not known on {machine}")
    answer: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return answer

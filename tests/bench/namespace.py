"""A network of a bench's own, so that ports are free and what it does to packets is nobody else's trouble."""

from __future__ import annotations

import ctypes
import os
import subprocess

_CLONE_NEWNET = 0x40000000


def enter_network_namespace(mtu: int | None = None) -> None:
    """Move this process, and those it starts from now on, to a network of their own; it ends with them.

    Call before there are other threads: they would stay outside.

    Args:
        mtu: of the loopback device; None: as it comes.

    Raises:
        OSError: not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"unshare(CLONE_NEWNET): {os.strerror(number)}")
    size = [] if mtu is None else ["mtu", str(mtu)]
    subprocess.run(["ip", "link", "set", "lo", *size, "up"], check=True)

"""Connections in TIME_WAIT: they hold local ports, and beyond a limit the kernel throws them away.

Of the network namespace that this process runs in, which is the node's with `hostNetwork: true`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_bridge.errors import BridgeError
from otel_bridge.mounts import PROC

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class TimeWait:
    """How matters stand.

    Attributes:
        sockets: in TIME_WAIT.
        limit: how many may be (`net.ipv4.tcp_max_tw_buckets`).
        overflows: how many were thrown away since boot because there were as many.
        ports: how many local ports connections may use (`net.ipv4.ip_local_port_range`).
    """

    sockets: int
    limit: int
    overflows: int
    ports: int


def read_time_wait(proc: Path = PROC) -> TimeWait:
    """Read from procfs.

    Raises:
        BridgeError: this kernel tells it otherwise, or not at all.
    """
    settings = proc / "sys" / "net" / "ipv4"
    try:
        sockets = (proc / "net" / "sockstat").read_text().split("TCP:", 1)[1].splitlines()[0].split()
        names, values = (
            line.split()
            for line in (proc / "net" / "netstat").read_text().splitlines()
            if line.startswith("TcpExt:")
        )
        first, last = (settings / "ip_local_port_range").read_text().split()
        return TimeWait(
            sockets=int(sockets[sockets.index("tw") + 1]),
            limit=int((settings / "tcp_max_tw_buckets").read_text()),
            overflows=int(dict(zip(names, values, strict=True))["TCPTimeWaitOverflow"]),
            ports=int(last) - int(first) + 1,
        )
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise BridgeError(f"connections in TIME_WAIT cannot be counted: {error!r}") from error

"""Why an address cannot be listened on, for a person."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

import psutil

from otel_bridge.errors import StartError

if TYPE_CHECKING:
    from otel_bridge.units import Endpoint


def cannot_listen(endpoint: Endpoint, setting: str, cause: OSError | None) -> StartError:
    """The error to raise; `setting` is the endpoint's key path, no `cause` means that none was told."""
    if cause is None:
        cause = _try_to_listen(endpoint)
    reason = (cause.strerror or str(cause)) if cause is not None else "the address was refused"
    if cause is not None and cause.errno == errno.EADDRINUSE:
        holder = _holder(endpoint.port)
        reason = f"port {endpoint.port} is in use" + (f" by {holder}" if holder else "")
    elif cause is not None and cause.errno == errno.EACCES:
        reason += "; ports below 1024 need CAP_NET_BIND_SERVICE"
    return StartError(
        f"cannot listen on {endpoint}: {reason}; set {setting} to a free address of this machine "
        "(port 0 lets the system choose), or end what holds it"
    )


def _try_to_listen(endpoint: Endpoint) -> OSError | None:
    """What the system says to it: gRPC keeps that to itself."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        return error
    return None


def _holder(port: int) -> str | None:
    """The process that listens on a port, as far as this user may know."""
    for connection in psutil.net_connections("tcp"):
        if connection.status != psutil.CONN_LISTEN or connection.pid is None or not connection.laddr:
            continue
        if connection.laddr[1] == port:
            try:
                name = psutil.Process(connection.pid).name()
            except psutil.Error:
                name = "a process"
            here = ", this very process" if connection.pid == os.getpid() else ""
            return f"{name} (pid {connection.pid}{here})"
    return None

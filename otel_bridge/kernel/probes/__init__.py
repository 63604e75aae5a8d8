"""The probes, one module each; in the order they are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_bridge.kernel.probes import (
    block,
    cuda,
    drm,
    memory,
    process,
    requests,
    sched,
    socket,
    tcp,
    tls,
    user,
)

if TYPE_CHECKING:
    from otel_bridge.kernel.config import ProbesConfig
    from otel_bridge.kernel.probes.base import Probe

PROBES = (
    process.PROBE,
    socket.PROBE,
    requests.PLAIN,
    requests.ENCRYPTED,
    tcp.PROBE,
    sched.PROBE,
    block.PROBE,
    memory.PROBE,
    tls.PROBE,
    cuda.PROBE,
    drm.PROBE,
    user.PROBE,
)


def is_wanted(probe: Probe, config: ProbesConfig) -> bool:
    """Whether a configuration asks for a probe, itself or through one that it serves."""
    if probe.serves:
        return any(is_wanted(other, config) for other in PROBES if other.name in probe.serves)
    own = probe.config_of(config)
    return own is None or own.wanted

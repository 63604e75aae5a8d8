"""TLS handshakes of every process that uses OpenSSL's libssl."""

from otel_bridge.kernel.probes.base import Probe, Program, Uprobe
from otel_bridge.kernel.records import TLS_EVENT
from otel_bridge.model import KernelEventKind

_MORE = ("SSL_connect", "SSL_accept", "SSL_set_fd", "SSL_set_connect_state", "SSL_set_accept_state")

PROBE = Probe(
    name="tls",
    gives="TLS handshakes: latency, version, error",
    programs=(Program("sched_process_exit", "sched_process_exit", "5.5", "ended threads are forgotten"),),
    uprobes=(
        Uprobe("SSL_do_handshake", "SSL_do_handshake", required=True),
        Uprobe("handshake_return", "SSL_do_handshake", at_return=True, required=True),
        Uprobe("SSL_get_error", "SSL_get_error", required=True),
        Uprobe("SSL_get_error_return", "SSL_get_error", at_return=True, required=True),
        Uprobe("SSL_free", "SSL_free", required=True),
        Uprobe("SSL_clear", "SSL_clear"),
        *(Uprobe(name, name) for name in _MORE),
        Uprobe("handshake_return", "SSL_connect", at_return=True),
        Uprobe("handshake_return", "SSL_accept", at_return=True),
    ),
    # libssl.so.3; with a hash in its name when a wheel brings its own.
    library=r"libssl[-.].*so.*",
    function="SSL_do_handshake",
    record=TLS_EVENT,
    kinds=frozenset({KernelEventKind.TLS_HANDSHAKE}),
    config_of=lambda config: config.tls,
)

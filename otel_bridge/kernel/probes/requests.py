"""HTTP/1.1 requests of programs that publish no spans: sockets and threads carry the span a request names."""

from otel_bridge.kernel.probes import socket
from otel_bridge.kernel.probes.base import Probe, Program, Uprobe

_PARSER = (
    "the parser is verified function by function, for which its programs must come with type information"
)

PLAIN = Probe(
    name="requests",
    gives="programs that publish nothing: spans are found by the traceparent of the requests they read",
    programs=(
        Program("request_received", "sock_recv_length", "6.3", "requests", called_by=socket.PROBE.name),
        Program(
            "answer_sent",
            "sock_send_length",
            "6.3",
            "when a request is over for the thread that read it",
            called_by=socket.PROBE.name,
        ),
        Program("sched_process_exit", "sched_process_exit", "5.5", "ended threads are forgotten"),
    ),
    config_of=lambda config: config.requests,
    needs_libbpf=_PARSER,
)

ENCRYPTED = Probe(
    name="tls_requests",
    gives="the same for requests that come in by way of OpenSSL's libssl",
    programs=(Program("sched_process_exit", "sched_process_exit", "5.5", "ended threads are forgotten"),),
    uprobes=(
        Uprobe("SSL_read", "SSL_read", required=True),
        Uprobe("read_return", "SSL_read", at_return=True, required=True),
        Uprobe("SSL_do_handshake", "SSL_do_handshake", required=True),
        # Since OpenSSL 1.1.1.
        Uprobe("SSL_read_ex", "SSL_read_ex"),
        Uprobe("read_return", "SSL_read_ex", at_return=True),
    ),
    library=r"libssl[-.].*so.*",
    function="SSL_read",
    config_of=lambda config: config.tls_requests,
    needs_libbpf=_PARSER,
)

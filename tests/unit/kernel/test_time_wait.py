"""Connections in TIME_WAIT, as procfs tells of them."""

from __future__ import annotations

import pytest

from otel_bridge import catalog
from otel_bridge.errors import BridgeError
from otel_bridge.kernel.accounts import TimeWaitAccounts
from otel_bridge.kernel.time_wait import TimeWait, read_time_wait
from otel_bridge.telemetry import Telemetry

FILES = {
    "net/sockstat": "sockets: used 117\nTCP: inuse 42 orphan 0 tw 57 alloc 72 mem 0\nUDP: inuse 1 mem 0\n",
    "net/netstat": "TcpExt: TW TCPTimeWaitOverflow TWKilled\nTcpExt: 1 23 4\nIpExt: InOctets\nIpExt: 5\n",
    "sys/net/ipv4/tcp_max_tw_buckets": "131072\n",
    "sys/net/ipv4/ip_local_port_range": "32768\t60999\n",
}


@pytest.fixture
def proc(tmp_path):
    """A procfs."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_all_four_figures_are_read(proc):
    """Whatever else stands in the files."""
    assert read_time_wait(proc) == TimeWait(sockets=57, limit=131072, overflows=23, ports=28232)


def test_this_kernel_tells_them():
    """The real files."""
    now = read_time_wait()
    assert 0 <= now.sockets <= now.limit
    assert 0 < now.ports < 1 << 16


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", [None, "", "TCP: inuse", "TcpExt: a b\nTcpExt: 1\n", "many"])
def test_what_is_told_otherwise_is_an_error_that_says_so(proc, name, text):
    """Files that are missing, short or of another form."""
    if text is None:
        (proc / name).unlink()
    else:
        (proc / name).write_text(text)
    with pytest.raises(BridgeError, match="TIME_WAIT cannot be counted"):
        read_time_wait(proc)


def test_overflows_count_from_the_start_of_the_bridge():
    """What was before is not its own."""
    telemetry = Telemetry()
    accounts = TimeWaitAccounts(telemetry)
    for overflows in (23, 23, 30):
        accounts.update(TimeWait(sockets=7, limit=8, overflows=overflows, ports=9))
    assert telemetry.value(catalog.KERNEL_TIME_WAIT_OVERFLOWS) == 7
    assert telemetry.value(catalog.KERNEL_TIME_WAIT_SOCKETS) == 7
    assert telemetry.value(catalog.KERNEL_TIME_WAIT_LIMIT) == 8
    assert telemetry.value(catalog.KERNEL_LOCAL_PORTS) == 9

"""What programs count about themselves, as metrics and log lines."""

from __future__ import annotations

import numpy as np
import pytest
import structlog

from otel_bridge import catalog
from otel_bridge.kernel.accounts import Accounts, DeviceAccounts
from otel_bridge.kernel.records import BLOCK_TOTALS, Counter
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock

CPUS = 2


def counters(**values: tuple[int, int]) -> np.ndarray:
    """Counters as the kernel has them, by name and CPU."""
    out = np.zeros((len(Counter), CPUS), "<u8")
    for name, row in values.items():
        out[Counter[name]] = row
    return out


@pytest.fixture
def telemetry():
    """Metrics of this test."""
    return Telemetry()


@pytest.fixture
def clock():
    """Time that stands."""
    return FakeClock()


@pytest.fixture
def accounts(telemetry, clock):
    """The accounts of one probe."""
    accounts = Accounts(telemetry, clock)
    accounts.open("tcp", CPUS)
    return accounts


def test_every_counter_exists_at_zero_before_anything_is_lost(accounts, telemetry):
    """Or `increase()` would miss the first loss."""
    for cpu in ("0", "1"):
        for reason in ("full", "limited"):
            labels = {"probe": "tcp", "cpu": cpu, "reason": reason}
            name = catalog.KERNEL_DROPPED.name + "_total"
            assert telemetry.registry.get_sample_value(name, labels) == 0.0


def test_increases_are_counted_by_cpu_and_reason(accounts, telemetry):
    """Counters in the kernel only grow."""
    accounts.update("tcp", counters(PRODUCED=(10, 5), DROPPED=(2, 0), ZERO_IDS=(1, 1)))
    lost = accounts.update("tcp", counters(PRODUCED=(20, 5), DROPPED=(2, 7), LIMITED=(0, 3), ZERO_IDS=(1, 2)))
    assert lost == 10
    assert telemetry.value(catalog.KERNEL_PRODUCED, probe="tcp") == 25
    assert telemetry.value(catalog.KERNEL_DROPPED, probe="tcp", cpu="0", reason="full") == 2
    assert telemetry.value(catalog.KERNEL_DROPPED, probe="tcp", cpu="1", reason="full") == 7
    assert telemetry.value(catalog.KERNEL_DROPPED, probe="tcp", cpu="1", reason="limited") == 3
    assert telemetry.value(catalog.KERNEL_BAD_CONTEXTS, probe="tcp", reason="zero") == 3


async def test_losses_are_said_at_most_once_in_ten_seconds(accounts, clock):
    """Case ebpf-drops: a line for each would choke the log store."""
    with structlog.testing.capture_logs() as lines:
        for second in range(1, 31):
            accounts.update("tcp", counters(DROPPED=(second * 1000, 0)))
            await clock.advance(1)
    assert len(lines) == 3
    assert (
        sum(line["tcp"] for line in lines) == 21_000
    )  # what came after the last line waits for the next one


def test_nothing_is_said_when_nothing_is_lost(accounts):
    """Produced events are no news."""
    with structlog.testing.capture_logs() as lines:
        accounts.update("tcp", counters(PRODUCED=(1000, 1000)))
    assert lines == []


def test_devices_are_counted_by_increase(telemetry):
    """A device seen for the first time brings all it has."""
    accounts = DeviceAccounts(telemetry)
    row = np.zeros((), BLOCK_TOTALS)
    row["requests"], row["latency_ns"], row["in_flight"] = 10, 2_000_000_000, -1
    accounts.update({"259:0": row.copy()})
    row["requests"], row["in_flight"] = 13, 4
    accounts.update({"259:0": row})
    assert telemetry.value(catalog.KERNEL_DEVICE_REQUESTS, device="259:0") == 13
    assert telemetry.value(catalog.KERNEL_DEVICE_LATENCY, device="259:0") == 2.0
    assert telemetry.value(catalog.KERNEL_DEVICE_IN_FLIGHT, device="259:0") == 4

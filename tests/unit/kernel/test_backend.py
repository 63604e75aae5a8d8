"""Which back end loads the probes, and why."""

from __future__ import annotations

import pytest

from otel_bridge.kernel.backend import choose
from otel_bridge.kernel.config import KernelConfig


@pytest.mark.parametrize(
    ("configured", "btf", "name", "reason"),
    [
        ("auto", True, "libbpf", "the kernel tells its types"),
        ("auto", False, "bcc", "there is no /sys/kernel/btf/vmlinux"),
        ("libbpf", False, "libbpf", "kernel.backend: libbpf"),
        ("bcc", True, "bcc", "kernel.backend: bcc"),
    ],
)
def test_the_kernel_s_types_decide_unless_somebody_did(configured, btf, name, reason):
    """The reason is for the log and for doctor."""
    choice = choose(KernelConfig(backend=configured), btf=btf)
    assert choice.name == name
    assert reason in choice.reason

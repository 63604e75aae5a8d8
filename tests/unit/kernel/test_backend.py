"""Which back end loads the probes, and why."""

from __future__ import annotations

import pytest

from otel_bridge.kernel.backend import accounts, choose
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


@pytest.mark.parametrize(
    ("figures", "members", "told"),
    [
        ("1200 340 7\n", {"rq", "load"}, True),
        ("1200 340 7\n", {"load"}, False),
        ("0 0 0\n", {"rq"}, False),
        (None, {"rq"}, False),
    ],
)
def test_the_scheduler_s_accounts_are_read_where_it_keeps_them(figures, members, told, tmp_path):
    """It may be built without them, or told to keep none; and its clock may be out of reach."""

    class Kernel:
        def kernel_members(self, structure):
            return frozenset(members if structure == "cfs_rq" else ())

    if figures is not None:
        (tmp_path / "self").mkdir()
        (tmp_path / "self/schedstat").write_text(figures)
    assert accounts(Kernel(), tmp_path) is told

"""What doctor says about gates."""

from __future__ import annotations

import os

import pytest

from otel_bridge.control.actions.config import ActionsConfig
from otel_bridge.control.gate import preflight
from otel_bridge.control.gate.preflight import look
from otel_bridge.findings import Verdict
from otel_bridge.libbpf.library import LibbpfError


def findings(**config):
    """By subject."""
    return {finding.subject: finding for finding in look(ActionsConfig.model_validate(config))}


@pytest.fixture
def refused(monkeypatch):
    """The kernel takes no program."""

    def refuse(_name):
        raise LibbpfError("load gate", 1)

    monkeypatch.setattr(preflight, "_load", refuse)


@pytest.mark.usefixtures("refused")
def test_programs_that_are_refused_matter_where_a_gate_wants_them():
    """Nobody else need mend anything."""
    gate = {"targets": ["*"], "pid": os.getpid()}
    assert {findings()[subject].verdict for subject in ("sk_lookup", "cgroup_skb")} == {Verdict.OPTIONAL}
    found = findings(gates={"llama": gate})
    assert found["sk_lookup"].verdict is Verdict.MISSING
    assert found["cgroup_skb"].verdict is Verdict.OPTIONAL
    assert found["OOM kills"].verdict is Verdict.OPTIONAL
    found = findings(gates={"llama": gate | {"mechanism": "cgroup", "kills": {"target": "llama"}}})
    assert found["sk_lookup"].verdict is Verdict.OPTIONAL
    assert found["cgroup_skb"].verdict is Verdict.MISSING
    assert found["OOM kills"].verdict is Verdict.MISSING


@pytest.mark.usefixtures("refused")
def test_a_gate_says_where_its_service_lives():
    """Or that it does not."""
    found = findings(
        gates={
            "here": {"targets": ["*"], "pid": os.getpid()},
            "gone": {"targets": ["*"], "namespace": "/nowhere"},
        }
    )
    assert found["gate here"].verdict is Verdict.OK
    assert f"/proc/{os.getpid()}/ns/net" in found["gate here"].found
    assert found["gate gone"].verdict is Verdict.PARTIAL
    assert "control.actions.gates.gone" in found["gate gone"].mend


@pytest.mark.usefixtures("refused")
def test_pins_need_a_bpffs(tmp_path):
    """Where gates are to outlive the bridge."""
    gates = {"here": {"targets": ["*"], "pid": os.getpid()}}
    assert findings(pins=None)["pins"].verdict is Verdict.OFF
    assert findings(pins=str(tmp_path))["pins"].verdict is Verdict.OPTIONAL
    assert findings(pins=str(tmp_path), gates=gates)["pins"].verdict is Verdict.MISSING

"""What the bench of single steps concludes from its rounds."""

from __future__ import annotations

import pytest

from tests.bench.join.steps import STEPS, Steps, figures_of


def test_what_is_added_is_told_from_round_to_round():
    """The machine became slower meanwhile: each round is compared with its companion alone."""
    off = {step: [5_000.0, 6_000.0, 9_000.0] for step in STEPS}
    on = {step: [value + 600 for value in values] for step, values in off.items()}
    on["switch"] = off["switch"]
    found = Steps(off, on)
    assert found.added("send") == [600, 600, 600]
    assert figures_of(found) == {
        "kernel.step.send": pytest.approx(0.1),
        "kernel.step.receive": pytest.approx(0.1),
        "kernel.step.receive_at_no_span": pytest.approx(0.1),
        "kernel.step.switch": 0,
        "kernel.step.switch_at_no_span": pytest.approx(0.1),
    }

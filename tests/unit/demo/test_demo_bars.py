"""Bars of the demo's timelines."""

from __future__ import annotations

import pytest

from demo.bars import Stretch


@pytest.mark.parametrize(
    ("began", "ended", "shown"),
    [
        (100, 100, "●·········"),
        (190, 190, "·········●"),
        (120, 160, "··━━━━●···"),
        (120, 121, "··●·······"),
        (0, 500, "━━━━━━━━━●"),
        (500, 600, "·········●"),
    ],
)
def test_a_bar_is_as_wide_as_its_stretch(began, ended, shown):
    """Wherever what it shows lies, also outside."""
    assert Stretch(100, 190, 10).bar(began, ended, "red").plain == shown


def test_a_stretch_of_no_time_has_a_bar():
    """All of it is at the beginning."""
    assert Stretch(100, 100, 4).bar(100, 100, "red").plain == "●···"

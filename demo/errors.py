"""What can go wrong in the demo, as a person needs it told."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class DemoError(Exception):
    """The demo cannot go on.

    Attributes:
        mend: what to do about it.
        log: the file that says more, with its end shown.
    """

    def __init__(self, what: str, mend: str, log: Path | None = None) -> None:
        super().__init__(what)
        self.mend = mend
        self.log = log

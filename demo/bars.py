"""Where in a stretch of time something lies, as a row of characters."""

from __future__ import annotations

from typing import NamedTuple

from rich.text import Text


class Stretch(NamedTuple):
    """What a bar's ends stand for, and how many characters it has; times are unix nanoseconds."""

    began: int
    ended: int
    width: int

    def bar(self, began: int, ended: int, style: str) -> Text:
        """A mark where it ended, and a line from where it began; what lies outside is at an end."""
        first, last = self._column(began), self._column(ended)
        marks = "━" * (last - first) + "●"
        left = self.width - first - len(marks)
        return Text.assemble(("·" * first, "dim"), (marks, style), ("·" * left, "dim"))

    def _column(self, moment: int) -> int:
        share = (moment - self.began) / max(self.ended - self.began, 1)
        return min(max(round(share * (self.width - 1)), 0), self.width - 1)

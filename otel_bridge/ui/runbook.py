"""The runbook's entries, as the page that alerts lead to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from otel_bridge.shipped import files

_FILE = Path("runbook.md")


@dataclass(frozen=True, slots=True)
class Entry:
    """What to do about one rule.

    Attributes:
        name: the heading.
        anchor: where links lead, as the alerts' `runbook_url` ends.
        lines: what it means, what to look at, what to do; each in pieces of text and, every second, of code.
    """

    name: str
    anchor: str
    lines: list[list[str]]


@cache
def entries() -> dict[str, Entry]:
    """All entries by their names, in the file's order."""
    _, *sections = re.split(r"^## ", files("alerts", _FILE.name)[_FILE], flags=re.MULTILINE)
    found = {}
    for section in sections:
        name, *lines = [line.strip() for line in section.splitlines() if line.strip()]
        found[name] = Entry(name, name.lower(), [line.split("`") for line in lines])
    return found

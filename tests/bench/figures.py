"""Where benchmarks leave their figures: one flat JSON object of dotted names to numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULTS = Path(__file__).with_name("results.json")


def read(path: Path = RESULTS) -> dict[str, float]:
    """All figures so far; none when no benchmark has run."""
    if not path.exists():
        return {}
    figures: dict[str, float] = json.loads(path.read_text())
    return figures


def merge(figures: Mapping[str, float], path: Path = RESULTS) -> None:
    """Put figures beside those of other benchmarks, replacing older ones of the same name.

    Three significant digits: what a benchmark can promise.
    """
    merged = read(path) | {name: float(f"{value:.3g}") for name, value in figures.items()}
    path.write_text(json.dumps(dict(sorted(merged.items())), indent=2) + "\n")

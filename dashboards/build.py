"""Dashboards to JSON: each `<name>.dashboard.py` becomes `generated/<name>.json`."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parent
GENERATED = HERE / "generated"
SUFFIX = ".dashboard.py"


def documents() -> dict[str, dict[str, Any]]:
    """Every dashboard by its name.

    Raises:
        ValueError: a query names a metric's part or label that the catalog does not have.
    """
    files = sorted(HERE.glob(f"*{SUFFIX}"))
    return {path.name.removesuffix(SUFFIX): runpy.run_path(str(path))["dashboard"] for path in files}


def text(document: dict[str, Any]) -> str:
    """The file's text: sorted, so that a change of one thing is a diff of one thing."""
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def drift(files: dict[Path, str]) -> list[Path]:
    """Files that are not as built, and those that no dashboard makes."""
    changed = [
        path for path, wanted in files.items() if not path.exists() or path.read_text("utf-8") != wanted
    ]
    return [*changed, *sorted(set(GENERATED.glob("*.json")) - files.keys())]


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file is not what would be written.")
def main(*, check: bool) -> None:
    """Build dashboards/generated/."""
    files = {GENERATED / f"{name}.json": text(document) for name, document in documents().items()}
    changed = drift(files)
    if check:
        for path in changed:
            click.echo(
                f"not as built: {path.relative_to(HERE.parent)}; run `python -m dashboards.build`", err=True
            )
        sys.exit(1 if changed else 0)
    GENERATED.mkdir(exist_ok=True)
    for path in changed:
        path.unlink(missing_ok=True)
    for path, wanted in files.items():
        path.write_text(wanted, encoding="utf-8")
    click.echo(f"{len(files)} dashboards, {len(changed)} changed")


if __name__ == "__main__":
    main()

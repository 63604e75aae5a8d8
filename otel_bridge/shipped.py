"""The files that come with the bridge: in a wheel inside the package, in a checkout in their own folders."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_IN_WHEEL = _PACKAGE / "bundle" / "shipped"

FOLDERS = ("dashboards/generated", "alerts", "alerts/generated", "alerts/rules", "collector-config")
"""Folders of the checkout of which setup.py puts files into a wheel."""


def folder(name: str) -> Path:
    """One of `FOLDERS`, wherever it lies.

    Raises:
        FileNotFoundError: neither a wheel with its files nor a checkout.
    """
    for root in (_IN_WHEEL, _PACKAGE.parent):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(
        f"found {name} neither in {_IN_WHEEL} nor in {_PACKAGE.parent}: "
        "install the wheel, or run in a checkout"
    )


def files(name: str, pattern: str) -> dict[Path, str]:
    """The texts of a folder's files by their path below it, sorted."""
    top = folder(name)
    return {path.relative_to(top): path.read_text("utf-8") for path in sorted(top.glob(pattern))}

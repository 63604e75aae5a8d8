"""The preflight report for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from otel_bridge.findings import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_bridge.findings import Finding
    from otel_bridge.kernel.preflight import Report

_STYLES = {
    Verdict.OK: "green",
    Verdict.PARTIAL: "yellow",
    Verdict.MISSING: "bold red",
    Verdict.OPTIONAL: "dim",
    Verdict.OFF: "dim",
}

_SUBJECT_WIDTH = 36
"""Columns, so that a long path leaves room for the rest."""


def render(report: Report, gates: Iterable[Finding] = (), gpus: Iterable[Finding] = ()) -> Group:
    """Tables: what probes stand on, the probes, OpenSSL, gates, GPUs; misses with what mends them."""
    tables = [
        _table("What the probes stand on", "needed for", report.machine),
        _table("Probes", "gives", report.probes),
    ]
    if report.openssl:
        tables.append(_table("OpenSSL", "used by", report.openssl))
    if gates := tuple(gates):
        tables.append(_table("Gates of breakers", "gives", gates))
    if gpus := tuple(gpus):
        tables.append(_table("GPUs", "gives", gpus))
    return Group(*tables)


def _table(title: str, purpose: str, findings: Iterable[Finding]) -> Table:
    table = Table(title=title, title_justify="left", expand=True)
    table.add_column("", overflow="fold", max_width=_SUBJECT_WIDTH)
    table.add_column("verdict")
    table.add_column("found", overflow="fold", ratio=3)
    table.add_column(purpose, overflow="fold", ratio=3)
    table.add_column("mend", overflow="fold", ratio=3)
    for finding in findings:
        # Text, not markup: paths and messages may hold brackets.
        table.add_row(
            Text(finding.subject),
            Text(finding.verdict.value, _STYLES[finding.verdict]),
            Text(finding.found),
            Text(finding.needed),
            Text(finding.mend),
        )
    return table

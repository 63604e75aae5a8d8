"""Moments marked on every panel: series that step when something grave happened."""

from __future__ import annotations

from dataclasses import dataclass

from dashboards.queries.promql import increase
from otel_bridge import catalog


@dataclass(frozen=True, slots=True)
class Mark:
    """One kind of annotation.

    Attributes:
        name: as the dashboard's switch shows it.
        expr: above 0 where it is to be drawn.
        color: of the line.
        title: of one annotation, with the series' labels.
    """

    name: str
    expr: str
    color: str
    title: str


def _fired(rule: str) -> str:
    found = increase(catalog.RULES_FIRINGS, ("rule", "instance"), rule=f'="{rule}"')
    return f"{found} > 0"


MARKS = (
    Mark("OOM kill", _fired("OomKill"), "red", "OOM kill at {{instance}}"),
    Mark("CUDA out of memory", _fired("CudaOutOfMemory"), "orange", "CUDA out of memory at {{instance}}"),
    Mark("NCCL timeout", _fired("NcclTimeout"), "purple", "NCCL timeout at {{instance}}"),
    Mark(
        "Breaker opened",
        increase(catalog.CONTROL_TRANSITIONS, ("cause", "instance"), state='="open"') + " > 0",
        "dark-red",
        "Breaker opened by {{cause}} at {{instance}}",
    ),
)

"""What came in and what came out, side by side, for a person at a terminal."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from demo.checks import BATCH_SIZE, MODEL, PROMPT_BYTES, is_call
from otel_bridge import catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from demo.checks import Check
    from demo.spans import RecordedSpan

KEY_WIDTH, VALUE_WIDTH = 44, 34
"""Columns of the comparison, in characters; values are cut, keys only on narrow terminals."""
INDEXED = re.compile(r"^(?P<head>.+?)\.\d+\..*$")
DULL = re.compile(
    r"^(server\.|url\.(scheme|path)|network\.|http\.(request\.method|route)|user_agent\.original)"
)
"""Says nothing that the other rows do not."""

SHOWN = (
    ("OpenTelemetry's instrumentation, names up to conventions 1.36", "client-openai-v2", "chat tiny"),
    ("OpenInference: a vocabulary of its own, messages flattened", "client-openinference", "ChatCompletion"),
    ("OpenLLMetry: current names and some of its own", "client-openllmetry", "openai.chat"),
    (
        "the engine's HTTP server: model in a header, batch size in the query",
        "engine",
        "POST /v1/completions",
    ),
    ("the engine as vLLM: no model at all", "engine", "llm_request"),
    ("a call that failed", "client-openinference", "error"),
)
"""What is shown, the service it comes from, and its name."""


def before_and_after(console: Console, before: Sequence[RecordedSpan], after: Sequence[RecordedSpan]) -> None:
    """One table for each representative span."""
    came_out = {span.span_id: span for span in after}
    for title, service, name in SHOWN:
        span = _representative(before, service, name)
        if span is not None and span.span_id in came_out:
            console.print(side_by_side(title, span, came_out[span.span_id]))


def side_by_side(title: str, before: RecordedSpan, after: RecordedSpan) -> Table:
    """Attributes in, attributes out: what was written is green, what was taken away is red."""
    table = Table(
        title=f"[bold]{before.name}[/bold]  ({before.service})\n[dim]{title}[/dim]",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("attribute", no_wrap=True, overflow="ellipsis", min_width=28, max_width=KEY_WIDTH)
    table.add_column("in", max_width=VALUE_WIDTH, no_wrap=True, overflow="ellipsis")
    table.add_column("out", max_width=VALUE_WIDTH, no_wrap=True, overflow="ellipsis")
    came, went = collapsed(before.attributes), collapsed(without_sources(after.attributes))
    written = sorted(went.keys() - came.keys(), key=_ours_first)
    kept = [key for key in came if key in went and not DULL.match(key)]
    taken = [key for key in came if key not in went]
    for key in written:
        table.add_row(Text(key, "green"), "", Text(went[key], "green"))
    for key in kept:
        changed = came[key] != went[key]
        table.add_row(key, came[key], Text(went[key], "yellow" if changed else "dim"))
    for key in taken:
        table.add_row(Text(key, "red"), Text(came[key], "red"), Text("—", "dim"))
    return table


def without_sources(attributes: dict[str, Any]) -> dict[str, Any]:
    """Which source won is shown beside the value, not in a row of its own."""
    sources = {source_key(key): key for key in attributes}
    told = {key: value for key, value in attributes.items() if key not in sources}
    for source, key in sources.items():
        if source in attributes:
            told[key] = f"{_text(attributes[key])}  ← {attributes[source]}"
    return told


def collapsed(attributes: dict[str, Any]) -> dict[str, str]:
    """Values as short texts; attributes that differ in an index only become one row with their number."""
    groups: dict[str, list[str]] = {}
    for key, value in attributes.items():
        match = INDEXED.match(key)
        name = f"{match['head']}.*" if match else key
        groups.setdefault(name, []).append(_text(value))
    return {
        name: values[0] if not name.endswith(".*") else f"{len(values)} attributes: {' · '.join(values)}"
        for name, values in groups.items()
    }


def by_client(after: Sequence[RecordedSpan]) -> Table:
    """For each writer of spans, how many calls got each value, and which source won."""
    table = Table(title="What the calls carry now", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("spans of")
    table.add_column("calls", justify="right")
    for key in (MODEL, PROMPT_BYTES, BATCH_SIZE):
        table.add_column(f"{key}\n[dim]calls that have it · where from[/dim]")
    groups: dict[str, list[RecordedSpan]] = {}
    for span in after:
        if is_call(span):
            kind = "llm_request" if span.name == "llm_request" else "HTTP" if span.service == "engine" else ""
            groups.setdefault(f"{span.service} {kind}".strip(), []).append(span)
    for group, spans in sorted(groups.items()):
        table.add_row(
            group, str(len(spans)), *(_share(spans, key) for key in (MODEL, PROMPT_BYTES, BATCH_SIZE))
        )
    return table


def verdict(console: Console, checks: Sequence[Check]) -> None:
    """Each check on a line."""
    table = Table(
        title="Checked on every span", title_justify="left", box=None, pad_edge=False, show_header=False
    )
    table.add_column(width=1)
    table.add_column()
    table.add_column(style="dim")
    for check in checks:
        mark = Text("✓", "bold green") if check.ok else Text("✗", "bold red")
        table.add_row(mark, check.claim, check.found if check.ok else Text(check.found, "red"))
    console.print(table)


def source_key(target: str) -> str:
    """The attribute that says which source a target's value came from."""
    return catalog.ENRICH_SOURCE_TEMPLATE.format(target=target)


def _representative(spans: Sequence[RecordedSpan], service: str, name: str) -> RecordedSpan | None:
    of_service = [span for span in spans if span.service == service]
    if name == "error":
        failed = [span for span in of_service if "nope" in repr(span.attributes) and is_call(span)]
        return failed[0] if failed else None
    return next((span for span in of_service if span.name == name), None)


def _share(spans: Sequence[RecordedSpan], key: str) -> str:
    have = [span for span in spans if key in span.attributes]
    sources = sorted(
        {str(span.attributes[source_key(key)]) for span in have if source_key(key) in span.attributes}
    )
    return f"{len(have)}" + (f" · {', '.join(sources)}" if sources else "")


def _ours_first(key: str) -> tuple[int, str]:
    for rank, prefix in enumerate(("llm.", "gen_ai.", "")):
        if key.startswith(prefix):
            return rank, key
    return 3, key


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())

"""The slow request for a person at a terminal: how long, what the kernel counted, and what happened when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from demo.bars import Stretch
from demo.checks import Check
from otel_bridge import catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from demo.slow.run import Story
    from demo.spans import RecordedEvent, RecordedSpan

BAR_WIDTH = 40
RETRANSMIT, WAIT = "kernel.tcp.retransmit", "kernel.sched.wait"
EXPLAINED = 0.8
"""The share of the span's time that the wait must account for."""
FRAMES = 3


def why(console: Console, story: Story) -> None:
    """What made it slow."""
    span = story.span
    console.print(
        f"\n[bold]Why was it slow?[/bold]  [bold]{span.name}[/bold] took "
        f"[bold red]{milliseconds(span.duration_ns)}[/bold red]; the same request before: "
        f"{story.usual * 1e3:.0f} ms\n"
        "[dim]The client's span as it left the bridge; the kernel stamped the events with its id.[/dim]"
    )
    console.print(_timeline(span))
    console.print(_attributes(span))


def check(story: Story) -> Check:
    """The span names its cause: segments sent again, and the wait for them."""
    span = story.span
    again = [event for event in span.events if event.name == RETRANSMIT]
    longest = max((_duration(event) for event in span.events if event.name == WAIT), default=0)
    wrong = []
    if not again:
        wrong.append("no retransmit on it")
    if span.attributes.get(catalog.KERNEL_TCP_RETRANSMITS.key, 0) < len(again):
        wrong.append("its count is less than its events")
    if longest < EXPLAINED * span.duration_ns:
        wrong.append(f"it waited {milliseconds(longest)} of {milliseconds(span.duration_ns)}")
    if not all(span.start_ns <= event.time_ns <= span.end_ns for event in again):
        wrong.append("a retransmit lies outside of it")
    found = ", ".join(wrong) or (
        f"{len(again)} retransmits, waited {milliseconds(longest)} of {milliseconds(span.duration_ns)}"
    )
    return Check("the slow request's span says what made it slow", found, ok=not wrong)


def _duration(event: RecordedEvent) -> int:
    taken: int = event.attributes.get(catalog.KERNEL_DURATION.key, 0)
    return taken


def milliseconds(nanoseconds: float) -> str:
    """For people."""
    return f"{nanoseconds / 1e6:.0f} ms"


def _timeline(span: RecordedSpan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("after", justify="right")
    table.add_column("", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("told by the kernel", overflow="fold")
    whole = Stretch(span.start_ns, span.end_ns, BAR_WIDTH)
    table.add_row("0 ms", whole.bar(span.start_ns, span.start_ns, "red"), "request begins", "")
    for event in sorted(span.events, key=lambda event: event.time_ns):
        began = event.time_ns - _duration(event)
        table.add_row(
            milliseconds(event.time_ns - span.start_ns),
            whole.bar(began, event.time_ns, "red"),
            Text(event.name, "red" if event.name in (RETRANSMIT, WAIT) else ""),
            Text(_told(event)),
        )
    end = whole.bar(span.end_ns, span.end_ns, "red")
    table.add_row(milliseconds(span.duration_ns), end, "answer is read, span ends", "")
    return table


def _told(event: RecordedEvent) -> str:
    said = event.attributes
    parts = [f"match {said.get(catalog.KERNEL_MATCH.key)}"]
    if catalog.NETWORK_PEER_PORT.key in said:
        local, peer = said[catalog.NETWORK_LOCAL_PORT.key], said[catalog.NETWORK_PEER_PORT.key]
        parts.append(f"port {local} → {peer}")
    for attribute, what in (
        (catalog.KERNEL_SCHED_OFF_CPU_TIME, "off the CPU"),
        (catalog.KERNEL_SCHED_RUN_QUEUE_TIME, "waiting for a CPU"),
    ):
        if said.get(attribute.key):
            parts.append(f"{milliseconds(said[attribute.key])} {what}")
    lines = [", ".join(parts)]
    lines += [f"  {frame}" for frame in str(said.get(catalog.CODE_STACKTRACE.key, "")).splitlines()[:FRAMES]]
    return "\n".join(lines)


def _attributes(span: RecordedSpan) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="green")
    table.add_column(justify="right")
    table.add_column(style="dim")
    known: dict[str, Any] = {
        attribute.key: attribute
        for attribute in vars(catalog).values()
        if isinstance(attribute, catalog.Attribute)
    }
    for key, value in sorted(span.attributes.items()):
        if key.startswith("kernel."):
            attribute = known.get(key)
            shown = milliseconds(value) if attribute is not None and attribute.unit == "ns" else str(value)
            table.add_row(key, shown, attribute.description if attribute is not None else "")
    return table


def cannot(console: Console, lacks: Sequence[tuple[str, str]]) -> None:
    """What this machine lacks to show it."""
    console.print(
        "\n[bold]Why was it slow?[/bold]  [dim]The last part loses packets of one request and shows the "
        "kernel's events on its span. It needs:[/dim]"
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="yellow")
    table.add_column()
    for what, mend in lacks:
        table.add_row(Text(what), Text(mend))
    console.print(table)

"""The trip for a person at a terminal: what caused it, what saw it, what it did, and how it ended."""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from demo.bars import Stretch
from demo.checks import Check
from demo.trip.control import GATE, TARGET
from demo.trip.run import CLIENTS

if TYPE_CHECKING:
    from rich.console import Console

    from demo.trip.run import Story

BAR_WIDTH = 24
_COLOURS = {"open": "bold red", "half-open": "yellow", "closed": "bold green"}


class Moment(NamedTuple):
    """One line of the timeline; its time is unix nanoseconds."""

    time: int
    part: str
    what: str
    told: str


def trip(console: Console, story: Story) -> None:
    """The timeline."""
    console.print(
        "\n[bold]Trip and recovery[/bold]  more was asked of the engine than it bears\n"
        "[dim]From the first of its clients on; the breaker's lines are those of its audit log "
        "(otel-bridge breaker history).[/dim]"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("after", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("part", no_wrap=True)
    table.add_column("what", overflow="fold")
    found = moments(story)
    whole = Stretch(story.began, max(moment.time for moment in found), BAR_WIDTH)
    for moment in found:
        colour = _COLOURS.get(moment.what, "red" if "refused" in moment.what else "bold")
        table.add_row(
            f"{(moment.time - story.began) / 1e9:.3f} s",
            whole.bar(moment.time, moment.time, colour),
            moment.part,
            Text.assemble((moment.what, colour), f": {moment.told}" if moment.told else ""),
        )
    console.print(table)


def moments(story: Story) -> list[Moment]:
    """What happened, in order."""
    cause = f"{CLIENTS} clients at once"
    if story.took:
        cause += f"; answers take {median(story.took) * 1e3:.0f} ms instead of {story.usual * 1e3:.0f} ms"
    found = [
        Moment(story.began, "cause", "overload", cause),
        Moment(story.ended, "cause", "the overload ends", ""),
    ]
    for entry in story.history:
        if entry["event"] != "transition":
            continue
        told = entry["reason"] or entry["cause"].replace("_", " ")
        if entry["cause"] == "rule":
            found.append(Moment(entry["time"], "rule", "fires", told.removeprefix("rule ")))
            told = f"new requests for {TARGET} are refused, those under way go on"
        found.append(Moment(entry["time"], "breaker", entry["after"].replace("_", "-"), told))
    if story.refused:
        told = f"by a reset, before the engine sees it; {len(story.refused)} in all"
        found.append(Moment(min(story.refused), "kernel gate", "first connection refused", told))
    if story.answer is not None:
        told = f"429, Retry-After: {story.answer.retry_after}, says the decision API"
        found.append(Moment(story.asked, "gateway", "request refused", told))
    if story.back:
        found.append(Moment(story.back, "recovery", "first answer", "to a request that was let through"))
    return sorted(found, key=lambda moment: moment.time)


def check(story: Story) -> Check:
    """The rule tripped it, who asked was refused, who was being served was answered, and it closed again."""
    wrong = []
    opened, closed = story.changes("open"), story.changes("closed")
    if not opened or opened[0]["cause"] != "rule" or "EngineOverloaded" not in opened[0]["reason"]:
        wrong.append("the rule did not open it")
    if story.answer is None or not story.answer.retry_after:
        wrong.append("no gateway was refused with Retry-After")
    if os.geteuid() == 0 and not story.refused:
        wrong.append(f"the kernel's gate {GATE} refused nobody")
    if story.broken:
        wrong.append(f"{story.broken} requests under way were not answered")
    if not closed or closed[-1]["cause"] != "probes_passed":
        wrong.append("probes did not close it")
    found = ", ".join(wrong) or (
        f"{len(story.refused)} connections refused, {len(story.took)} requests under way answered"
    )
    return Check("an overload trips the breaker, and it closes again", found, ok=not wrong)

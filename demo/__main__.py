"""`make demo`: sets up what it needs, runs it, shows what came in and what came out, and cleans up."""

from __future__ import annotations

import signal
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from demo import environments, report, spans
from demo.checks import Check, check_all
from demo.errors import DemoError
from demo.places import ROOT, cache, new_run
from demo.slow import run as slow
from demo.slow import show
from demo.stack import Stack, collector_binary
from demo.traffic import ClientRun, Exchange, drive
from demo.trip import run as trip
from demo.trip import show as trip_show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rich.status import Status

ARRIVAL_TIMEOUT = 60.0
QUIET = 1.5
"""Seconds without a new span after which the Collector has them all."""
LOG_LINES = 12
PLAIN_WIDTH = 120
"""Columns where there is no terminal to ask."""


class Story:
    """Tells a person what happens and why.

    Args:
        console: where.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._step = 0
        self._began = time.monotonic()

    @contextmanager
    def step(self, title: str, why: str) -> Iterator[Status]:
        """One step, with a spinner where there is a terminal."""
        self._step += 1
        self.console.print(f"\n[bold cyan]{self._step}[/bold cyan] [bold]{title}[/bold]")
        self.console.print(f"  [dim]{why}[/dim]")
        with self.console.status("working") as status:
            yield status

    def done(self, what: str, detail: str = "") -> None:
        """Something is ready."""
        self.console.print(f"  [green]✓[/green] {what}  [dim]{detail}[/dim]", highlight=False)

    def failed(self, what: str, detail: str = "") -> None:
        """Something did not go as meant."""
        self.console.print(f"  [red]✗[/red] {what}  {detail}", highlight=False)

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began


@click.command(help=__doc__)
@click.option("--keep", is_flag=True, help="Stay up afterwards, and print the addresses.")
@click.option(
    "--spans",
    "shape",
    type=click.Choice(["both", "vllm", "http"]),
    default="both",
    help="The engine's spans: vLLM's llm_request, the HTTP server's, or both.",
)
def main(*, keep: bool, shape: str) -> None:
    """Run the demo; exit code 1 when something is not as it must be."""
    # A supervisor's SIGTERM unwinds like Ctrl-C, so that nothing is left running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    try:
        ok = run(Story(console), keep=keep, shape=shape)
    except DemoError as error:
        explain(console, error)
        ok = False
    except KeyboardInterrupt:
        console.print("\nStopped; nothing is left running.")
        sys.exit(130)
    sys.exit(0 if ok else 1)


def run(story: Story, *, keep: bool, shape: str) -> bool:
    """The demo from beginning to end; whether all was as it must be."""
    console = story.console
    console.print(
        Panel(
            "clients ──▶ engine          llama.cpp, and the openai client\n"
            "   └────┬──────┘  OTLP\n"
            "    [bold]Collector[/bold]               upstream's, unmodified: first pipeline\n"
            "        ▼\n"
            "    [bold cyan]otel_bridge[/bold cyan]             one vocabulary, model, length; no prompts\n"
            "        ▼\n"
            "    [bold]Collector[/bold]               second pipeline",
            title="otel_bridge demo",
            title_align="left",
            expand=False,
        )
    )
    collector = prepare(story)
    with Stack(new_run(), collector, shape) as stack:
        with story.step("Start", "Each in its own process, on free ports of 127.0.0.1."):
            stack.start(story.done)
        runs = make_traffic(story, stack)
        before, after = wait_for_spans(story, stack, runs)
        console.print(
            "\n[bold]What came in and what came out[/bold]\n"
            "[dim]The same span as the Collector's first pipeline received it, and its second.[/dim]  "
            "[green]written[/green], [yellow]changed[/yellow], [red]taken away[/red] by the bridge\n"
        )
        report.before_and_after(console, before, after)
        console.print(report.by_client(after))
        checks = check_all(runs, before, after)
        checks += make_one_slow(story, stack)
        checks += overload(story, stack)
        report.verdict(console, checks)
        console.print(own_words(stack))
        closing(story, stack, keep=keep)
        if keep:
            while True:
                stack.check()
                time.sleep(1)
    return all(check.ok for check in checks)


def prepare(story: Story) -> Path:
    """Make what is missing; the Collector's binary."""
    with story.step("Prepare", f"Built once, kept in {cache()}."):
        missing = [environment for environment in environments.ALL if not environment.ready]
        for environment in environments.ALL:
            if environment not in missing:
                story.done(f"environment {environment.name}", "there already")
        with ThreadPoolExecutor(max_workers=2) as pool:
            began = time.monotonic()
            made = {pool.submit(environment.make): environment for environment in missing}
            for future in as_completed(made):
                future.result()
                story.done(f"environment {made[future].name}", f"made in {time.monotonic() - began:.0f} s")
        collector = collector_binary(build=False)
    if collector is None:
        story.console.print("  The Collector is built now, once; some minutes.")
        collector = collector_binary(build=True)
        assert collector is not None
    story.done("Collector", str(collector))
    return collector


def make_traffic(story: Story, stack: Stack) -> list[ClientRun]:
    """Let the clients talk to the engine."""
    why = "The public openai client under three instrumentations, one of them twice; marked as test traffic."
    with story.step("Ask", why) as status:

        def tell(client: str, exchange: Exchange) -> None:
            status.update(f"{client}: {exchange.exchange}")
            if not exchange.ok:
                story.failed(f"{client}: {exchange.exchange}", exchange.outcome)

        at = stack.addresses
        runs = drive(at.openai, at.otlp, stack.run, tell)
    kinds = "; ".join(exchange.exchange for exchange in runs[0].exchanges)
    story.console.print(f"  [dim]Each made: {kinds}.[/dim]")
    for run in runs:
        requests = sum(exchange.requests for exchange in run.exchanges)
        story.done(f"{run.client:<17} {requests} requests", f"{run.spans} spans")
    return runs


def wait_for_spans(
    story: Story, stack: Stack, runs: Sequence[ClientRun]
) -> tuple[list[spans.RecordedSpan], list[spans.RecordedSpan]]:
    """Spans before and after the bridge, when all have come.

    Raises:
        DemoError: some did not come in time.
    """
    least = sum(run.spans for run in runs)
    if stack.spans != "vllm":
        # The engine's HTTP server has a span for every request, refused ones included.
        least += sum(exchange.requests for run in runs for exchange in run.exchanges)
    before: list[spans.RecordedSpan] = []
    with story.step("Wait", "Until the Collector's second pipeline has every span that its first received."):
        end = time.monotonic() + ARRIVAL_TIMEOUT
        last_change = time.monotonic()
        while time.monotonic() < end:
            stack.check()
            seen = len(before)
            before, after = spans.read(stack.run / "before.jsonl"), spans.read(stack.run / "after.jsonl")
            if len(before) != seen:
                last_change = time.monotonic()
            missing = {span.span_id for span in before} - {span.span_id for span in after}
            if len(before) >= least and not missing and time.monotonic() - last_change > QUIET:
                story.done(f"{len(before)} spans in, {len(after)} spans out")
                return before, after
            time.sleep(0.1)
    raise DemoError(
        f"within {ARRIVAL_TIMEOUT:g} s the Collector received {len(before)} spans (at least {least} were "
        f"expected), of which {len(missing)} did not come back from the bridge",
        "look at the bridge's log, and at the Collector's beside it",
        stack.run / "bridge.log",
    )


def make_one_slow(story: Story, stack: Stack) -> list[Check]:
    """The last part: a request whose packets are lost, and its span; nothing where that cannot be done."""
    lacks = slow.missing(stack)
    if lacks:
        show.cannot(story.console, lacks)
        return []
    why = "Its packets are lost on loopback for a moment (a rule of nftables, on that connection alone)."
    with story.step("Make one request slow", why):
        told = slow.run(stack, story.done)
    show.why(story.console, told)
    return [show.check(told)]


def overload(story: Story, stack: Stack) -> list[Check]:
    """The end: more is asked of the engine than it bears."""
    why = "A rule sees it in the engine's spans and opens the breaker, until answers come in time again."
    with story.step("Overload the engine", why):
        told = trip.run(stack, story.done)
    trip_show.trip(story.console, told)
    return [trip_show.check(told)]


def own_words(stack: Stack) -> Table:
    """What the bridge counts itself."""
    with urllib.request.urlopen(stack.addresses.metrics, timeout=5) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    table = Table(
        title="\nWhat the bridge says of itself",
        title_justify="left",
        box=None,
        show_header=False,
        pad_edge=False,
    )
    table.add_column(style="dim")
    table.add_column()
    wanted = (
        "receiver_accepted",
        "receiver_refused",
        "exporter_sent",
        "exporter_dropped",
        "enrich_bad_values",
    )
    for family in families:
        for sample in family.samples:
            if (
                any(name in sample.name for name in wanted)
                and sample.name.endswith("_total")
                and sample.value
            ):
                labels = ", ".join(f"{key}={value}" for key, value in sample.labels.items())
                table.add_row(f"{sample.name}{{{labels}}}", f"{sample.value:g}")
    return table


def closing(story: Story, stack: Stack, *, keep: bool) -> None:
    """What is kept where, and what to do next."""
    console, at = story.console, stack.addresses
    run = stack.run.relative_to(ROOT)
    kept = Table(title="\nKept", title_justify="left", box=None, show_header=False, pad_edge=False)
    kept.add_column(style="dim")
    kept.add_column()
    kept.add_row(f"{run}/before.jsonl, after.jsonl", "every span, as OTLP/JSON")
    kept.add_row(f"{run}/*.log", "what each program said")
    kept.add_row(str(cache()), "the Collector, environments, the model; delete it to build anew")
    console.print(kept)
    if keep:
        console.print(
            f"\n[bold]Still up[/bold], until Ctrl-C:\n"
            f"  OpenAI API   {at.openai}      model [bold]tiny[/bold], any key\n"
            f"  OTLP/gRPC    {at.otlp}         send your own spans\n"
            f"  OTLP/HTTP    http://127.0.0.1:{at.collector_http}\n"
            f"  metrics      {at.metrics}\n"
            f"  decisions    {at.decisions_url}/v1/decision?service=engine\n"
            f"  spans out    tail -f {run}/after.jsonl\n",
            highlight=False,
        )
        return
    console.print(
        f"\n[bold]Next[/bold]  [dim]({story.seconds:.0f} s in all)[/dim]\n"
        "  make demo ARGS=--keep            the same, staying up: send it your own spans\n"
        "  collector-config/README.md       your Collector as sidecar, node agent, gateway\n"
        "  otel-bridge print-config         every setting with its default\n"
        "  make test                        every test\n",
        highlight=False,
    )


def explain(console: Console, error: DemoError) -> None:
    """What happened, how to mend it, where to read more."""
    lines = [str(error), "", f"[bold]To mend it:[/bold] {error.mend}"]
    if error.log is not None:
        lines += [f"[bold]Log:[/bold] {error.log}", ""]
        if error.log.exists():
            lines += [
                f"[dim]{line}[/dim]"
                for line in error.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            ]
    console.print(
        Panel("\n".join(lines), title="The demo could not go on", border_style="red", title_align="left")
    )


if __name__ == "__main__":
    main()

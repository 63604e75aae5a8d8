"""Metrics served over HTTP: recorded ones that grow, and those of hardware and engines that are not here."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram, generate_latest

from otel_bridge.catalog import ForeignMetric, Kind, Metric
from otel_bridge.telemetry import Telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

GROWING = re.compile(r"_(total|bucket|sum|count)$")


@contextmanager
def served(text: Callable[[], str]) -> Iterator[int]:
    """A port that answers each scrape with a text made for it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def recorded(text: str) -> Callable[[], str]:
    """A recording of /metrics whose counters grow by what was recorded, each scrape."""
    scrapes = 0

    def grown() -> str:
        nonlocal scrapes
        scrapes += 1
        return "\n".join(_grown(line, scrapes) for line in text.splitlines()) + "\n"

    return grown


def _grown(line: str, times: int) -> str:
    sample, _, value = line.rpartition(" ")
    if line.startswith("#") or not GROWING.search(sample.partition("{")[0]):
        return line
    return f"{sample} {float(value) * times}"


def of_catalog(metrics: Iterable[Metric], labels: Mapping[str, str]) -> Callable[[], str]:
    """Metrics of the bridge as its own telemetry writes them, each with one set of labels."""
    telemetry = Telemetry()
    found = list(metrics)

    def text() -> str:
        for metric in found:
            made = {
                Kind.COUNTER: telemetry.counter,
                Kind.GAUGE: telemetry.gauge,
                Kind.HISTOGRAM: telemetry.histogram,
            }
            child = made[metric.kind](metric)
            values = [labels.get(name, name) for name in metric.labels]
            _touch(child.labels(*values) if values else child)
        return generate_latest(telemetry.registry).decode()

    return text


def _touch(child: Counter | Gauge | Histogram) -> None:
    if isinstance(child, Counter):
        child.inc()
    elif isinstance(child, Gauge):
        child.set(1)
    else:
        child.observe(0.02)


def of_engine(metrics: Iterable[ForeignMetric]) -> Callable[[], str]:
    """An engine's metrics by its documented names, each with one set of labels."""
    scrapes = 0
    found = list(metrics)

    def text() -> str:
        nonlocal scrapes
        scrapes += 1
        return "".join(line for metric in found for line in _lines(metric, scrapes))

    return text


def _lines(metric: ForeignMetric, scrapes: int) -> Iterator[str]:
    labels = ",".join(f'{name}="{name}-1"' for name in metric.labels)
    if metric.kind is Kind.HISTOGRAM:
        for bound in ("0.1", "+Inf"):
            inside = ",".join(part for part in (labels, f'le="{bound}"') if part)
            yield f"{metric.name}_bucket{{{inside}}} {scrapes}\n"
        yield f"{metric.name}_sum{{{labels}}} {scrapes * 0.05}\n"
        yield f"{metric.name}_count{{{labels}}} {scrapes}\n"
    else:
        suffix = "_total" if metric.kind is Kind.COUNTER and metric.total else ""
        yield f"{metric.name}{suffix}{{{labels}}} {scrapes}\n"

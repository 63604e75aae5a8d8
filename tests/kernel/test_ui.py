"""The bridge's page of a trace over real probes: what the kernel did to a request is on its timeline.

With OTEL_BRIDGE_SCREENSHOTS=docs it takes the pictures that the documentation shows.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from otel_bridge import catalog
from otel_bridge.testing import trace_request
from tests.kernel.test_retransmit import drop_some
from tests.support.browser import chromium
from tests.support.ports import free_port
from tests.support.processes import Bridge, eventually, running
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kernel import Worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@dataclass
class Request:
    """A request through a gateway and an engine, as their SDKs would send it."""

    trace_id: bytes = field(default_factory=lambda: os.urandom(16))
    spans: list[tuple[str, dict]] = field(default_factory=list)

    @contextmanager
    def span(self, service: str, name: str, parent: bytes = b"", **fields: object) -> Iterator[bytes]:
        """A span that lasts as long as the block; gives its id."""
        span_id, start = os.urandom(8), time.time_ns()
        yield span_id
        given = {
            "trace_id": self.trace_id,
            "span_id": span_id,
            "parent_span_id": parent,
            "name": name,
            "start_time_unix_nano": start,
            "end_time_unix_nano": time.time_ns(),
            **fields,
        }
        self.spans.append((service, given))

    def send(self, bridge: Bridge) -> None:
        """Each service sends its own."""
        for service in ("engine", "gateway"):
            spans = [span for owner, span in self.spans if owner == service]
            post = urllib.request.Request(
                f"http://127.0.0.1:{bridge.http_port}/v1/traces",
                data=trace_request(spans, resource={"service.name": service}),
                headers={"Content-Type": "application/x-protobuf"},
            )
            with urllib.request.urlopen(post, timeout=30) as answer:
                assert answer.status == 200


def made(worker: Worker, port: int) -> Request:
    """The worker does the engine's work: waits for a turn, then sends over a network that loses packets."""
    request = Request()
    chat = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "llama-3-8b",
        "gen_ai.prompt": "a secret",
    }
    with (
        request.span("gateway", "POST /v1/chat/completions", kind=2) as root,
        request.span("engine", "llm_request", root, kind=2, attributes=chat) as engine,
    ):
        with request.span("engine", "wait for a turn", engine, kind=1) as span_id:
            _work(worker, request, span_id, {"do": "sleep", "seconds": 0.06, "times": 3})
        with request.span("engine", "send tokens", engine, kind=1) as span_id:
            _work(worker, request, span_id, {"do": "upload", "port": port, "size": 40_000, "times": 3})
    return request


def _work(worker: Worker, request: Request, span_id: bytes, job: dict) -> None:
    worker.do({**job, "span": 1, "trace_id": request.trace_id.hex(), "span_id": span_id.hex()})


def test_what_the_kernel_did_to_a_request_is_on_its_timeline(start_worker, namespace, tmp_path):
    """Waits and retransmits, each on the span under which it happened; the prompt is nowhere."""
    worker = start_worker(prefix=namespace)
    [port] = worker.do({"do": "serve"})
    drop_some(namespace, port)
    with GrpcSink() as sink:
        config = {
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}"}},
            "kernel": {"mode": "required", "probes": {"sched": {"off_cpu_threshold": "20ms"}}},
            "processors": {"redact": {"content": "keep"}},
            "control": {
                "enabled": True,
                "policies": [{"slow_calls": {"threshold": "50ms", "consecutive": 1}}],
                "state": {"file": str(tmp_path / "breakers.db")},
                "operators": {"socket": str(tmp_path / "operators.sock")},
                "decisions": {"http": {"endpoint": f"127.0.0.1:{free_port()}"}},
            },
        }
        with running(Bridge(tmp_path / "bridge", config)) as bridge, chromium() as browser:
            eventually("the worker is followed", lambda: bridge.total(catalog.KERNEL_PROCESSES.name))
            page = browser.new_page(viewport={"width": 1200, "height": 700})
            url = f"http://127.0.0.1:{bridge.metrics_port}/ui"

            def hit() -> bytes | None:
                # Packets are lost by chance, so it takes some requests.
                request = made(worker, port)
                request.send(bridge)
                page.goto(f"{url}/trace/{request.trace_id.hex()}")
                label = page.get_by_role("row", name=re.compile("send tokens")).get_by_role("img")
                found = "kernel events" in str(label.get_attribute("aria-label"))
                return request.trace_id if found and "tcp.retransmit" in page.content() else None

            trace_id = eventually("a request whose packets were lost", hit, timeout=90)
            waits = page.get_by_role("row", name=re.compile("wait for a turn")).get_by_role("img")
            # It sleeps three times, and waits for whatever else this machine lets it wait for.
            [count] = re.findall(r"(\d+) kernel events", str(waits.get_attribute("aria-label")))
            assert int(count) >= 3
            assert "sched.off_cpu" in page.inner_text("main")
            assert "a secret" not in page.content()
            _picture(page, "trace-page")
            page.goto(f"{url}?only=marked")
            listed = page.get_by_role("group", name="Recent traces")
            row = listed.get_by_role("row", name=re.compile(trace_id.hex()[-8:]))
            assert "tcp.retransmits" in row.inner_text()
            assert "slow calls" in page.inner_text("main")
            page.get_by_text(re.compile(r"^\d+ quiet$")).click()
            assert page.get_by_role("link", name="TlsStallWithGpuAllocationFailure").is_visible()
            page.get_by_text(re.compile(r"^\d+ quiet$")).click()
            page.evaluate("scrollTo(0, 0)")
            assert page.get_by_role("row", name=re.compile("^sched at work")).count() == 1
            _picture(page, "overview-page")


def _picture(page, name: str) -> None:
    folder = os.environ.get("OTEL_BRIDGE_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png")

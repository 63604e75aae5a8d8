"""Every panel shows data: a running bridge, a real Prometheus, every query of panels, marks and variables.

The bridge is fed vLLM and its clients as recorded, with a node's kernel attributes on the spans, again and
again; breakers trip and rules fire on them. What cannot be here, GPUs and engines, is served as they serve
it; so are the kernel's metrics, which tests/kernel holds to the kernel itself.
"""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dashboards.build import documents
from otel_bridge import catalog
from otel_bridge.catalog import engines, gpu, kernel
from tests.support.exposition import of_catalog, of_engine, recorded, served
from tests.support.grafana import (
    FALLBACK,
    annotations,
    filled,
    link_filled,
    panels,
    variable_queries,
    variables,
)
from tests.support.ports import free_port
from tests.support.processes import ROOT, Bridge, eventually, running
from tests.support.prometheus import Prometheus
from tests.support.sinks import GrpcSink

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

RECORDING = ROOT / "tests" / "golden" / "vllm-0.32-and-clients.otlp.jsonl"
VLLM = ROOT / "tests" / "testdata" / "dashboards" / "vllm-0.32-metrics.prom"
DOCUMENTS = documents()
SCRAPE_INTERVAL = 1.0
KERNEL_ATTRIBUTES = {
    catalog.KERNEL_SCHED_RUN_QUEUE_TIME.key: 3_000_000,
    catalog.KERNEL_BLOCK_TIME.key: 2_000_000,
    catalog.KERNEL_TCP_RETRANSMITS.key: 2,
}
"""What a node's bridge wrote on a span before this one saw it."""
POD = "vllm-0"
OF_ROWS = {"vllm", "triton", "tgi", "sglang", "pod"}
"""Variables that rows are repeated by: each row has one value, not "All"."""
ALWAYS_FIRING = {"groups": [{"name": "slo", "rules": [{"alert": "ErrorBudgetBurn1h", "expr": "vector(1)"}]}]}
EVENT_KINDS = ("tcp_retransmit", "tcp_zero_window", "tls_handshake", "sched_wait", "reclaim")
MARKED = ("OomKill", "CudaOutOfMemory", "NcclTimeout")
"""Rules whose firings are marked; shipped ones, made anew on what the recording has."""
STEP = 2.0
SETTLING = 15.0
"""Seconds of load before anything is asked: rates need some samples, breakers time to go round."""


class Load:
    """The recording, sent again and again as new calls."""

    def __init__(self, port: int, decisions: int, alertmanager: int) -> None:
        self._port, self._decisions, self._alertmanager = port, decisions, alertmanager
        self._lines = [json.loads(line) for line in RECORDING.read_text().splitlines()]
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: Exception | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_exc: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopped.wait(0.3):
                number += 1
                for line in self._lines:
                    if "resourceSpans" in line:
                        self._send(_again(line, number))
                self._ask()
                self._alert()
        except Exception as error:  # noqa: BLE001 (told to the test, which stops the load)
            self.failure = error

    def _send(self, body: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/v1/traces",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200

    def _ask(self) -> None:
        url = f"http://127.0.0.1:{self._decisions}/v1/nginx?service=client-openai-v2&model=tiny"
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert answer.status == 204

    def _alert(self) -> None:
        alert = {
            "status": "firing",
            "labels": {"alertname": "Slow", "service": "nobody"},
            "annotations": {},
            "startsAt": "2026-01-01T00:00:00Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "fingerprint": "00000000000000aa",
        }
        body = {"version": "4", "groupKey": "{}", "status": "firing", "receiver": "bridge", "alerts": [alert]}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._alertmanager}/v1/alertmanager",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status < 300


def _again(line: dict[str, Any], number: int) -> dict[str, Any]:
    """The same spans, now, of other traces and other calls, and held up by the kernel."""
    line = json.loads(json.dumps(line))
    every = [
        span
        for resource in line["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    later = time.time_ns() - max(int(span["endTimeUnixNano"]) for span in every)
    every[0]["name"] = "burst" if number % 8 == 0 else every[0]["name"]
    every[-1]["status"] = {"code": 2}
    # A clock that was set while a span was open.
    every[-1]["startTimeUnixNano"] = str(int(every[-1]["endTimeUnixNano"]) + 1_000_000)
    for span in every:
        span["traceId"] = f"{number:08x}" + span["traceId"][8:]
        for key in ("startTimeUnixNano", "endTimeUnixNano"):
            span[key] = str(int(span[key]) + later)
        for attribute in span.get("attributes", []):
            if attribute["key"] in {"gen_ai.response.id", "gen_ai.request.id"}:
                attribute["value"]["stringValue"] = f"{number}-{attribute['value']['stringValue']}"
        span.setdefault("attributes", []).extend(
            {"key": key, "value": {"intValue": str(value)}} for key, value in KERNEL_ATTRIBUTES.items()
        )
        span["attributes"].append({"key": catalog.K8S_POD_NAME.key, "value": {"stringValue": POD}})
    return line


def _rules(path: Any) -> str:
    """The names that marks look for, on what the recording has."""
    burst = {"span": "any", "is": {"name": "burst"}, "count": 1, "within": "1s"}
    conditions = {
        **dict.fromkeys(MARKED, burst),
        "SpansCome": {"span": "any", "count": 1, "within": "1m"},
    }
    made = [
        {"name": name, "when": when, "severity": "info", "summary": "spans came"}
        for name, when in conditions.items()
    ]
    path.write_text(yaml.safe_dump({"rules": made}))
    return str(path)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory) -> Iterator[Prometheus]:
    """Prometheus, when it has seen some seconds of it all."""
    directory = tmp_path_factory.mktemp("dashboards")
    decisions, alertmanager = free_port(), free_port()
    every = [one for one in [*vars(kernel).values(), catalog.JOIN_EVENTS] if isinstance(one, catalog.Metric)]
    labels = {"gpu_uuid": "GPU-1", "outcome": "joined"}
    with ExitStack() as stack:
        sink = stack.enter_context(GrpcSink())
        config = {
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}", "tls": {"insecure": True}}},
            "connectors": {"derive": {"initial_zero": "2s", "dimensions": [catalog.K8S_POD_NAME.key]}},
            "processors": {"sample": {"enabled": True}, "consistency": {"enabled": True}},
            "service": {"ui": {"traces_per_second": 1000}},
            "rules": {"files": [_rules(directory / "rules.yaml")], "exclude": list(MARKED)},
            "control": {
                "enabled": True,
                "policies": [{"slow_calls": {"threshold": "1us", "consecutive": 2}, "open_time": "2s"}],
                "state": {"file": str(directory / "breakers.db")},
                "operators": {"socket": str(directory / "operators.sock")},
                "decisions": {"http": {"endpoint": f"127.0.0.1:{decisions}"}},
                "limits": {"rules": {"tokens": {"by": ["model"], "unit": "tokens", "amount": 1e6}}},
                "alertmanager": {"endpoint": f"127.0.0.1:{alertmanager}"},
                "actions": {
                    "webhooks": {"gateway": {"url": "http://127.0.0.1:9/", "targets": ["*"], "dry_run": True}}
                },
            },
        }
        bridge = stack.enter_context(running(Bridge(directory / "bridge", config)))
        foreign = [one for one in vars(engines).values() if isinstance(one, catalog.ForeignMetric)]
        texts = {
            "gpu": of_catalog((one for one in vars(gpu).values() if isinstance(one, catalog.Metric)), labels),
            "vllm": recorded(VLLM.read_text()),
            **{
                engine: of_engine(one for one in foreign if one.name.startswith(prefix))
                for engine, prefix in (("triton", "nv_"), ("tgi", "tgi_"), ("sglang", "sglang:"))
            },
            **{
                f"kernel-{kind}": of_catalog(every, {**labels, "kind": kind, "device": "nvme0n1"})
                for kind in EVENT_KINDS
            },
        }
        ports = {job: stack.enter_context(served(text)) for job, text in texts.items()}
        slo = directory / "slo.yaml"
        slo.write_text(yaml.safe_dump(ALWAYS_FIRING))
        server = stack.enter_context(
            running(Prometheus(directory, {"otel-bridge": bridge.metrics_port, **ports}, [slo]))
        )
        stack.enter_context(Load(bridge.http_port, decisions, alertmanager))
        eventually(
            "some seconds of spans", lambda: server.values("rate(traces_span_metrics_calls_total[10s]) > 0")
        )
        time.sleep(SETTLING)
        yield server


def _values(server: Prometheus, document: dict[str, Any]) -> dict[str, str]:
    """Each variable as it is when the dashboard is opened: everything, or the first choice."""
    out = {}
    for name, one in variables(document).items():
        out[name] = one["current"]["value"] if one["type"] == "custom" else ".*"
    for name, (selector, label) in variable_queries(document).items():
        found = server.ask(
            f"label/{label}/values", **{"match[]": filled(selector, out, step=1, scrape_interval=1)}
        )
        assert found, f"{document['uid']}: ${name} has no values"
        out[name] = "|".join(found) if name in OF_ROWS else ".*"
    return out


def _shows(server: Prometheus, target: dict[str, Any], values: dict[str, str]) -> bool:
    """Whether there is a number to draw, apart from the zero that stands for "never happened"."""
    expr = filled(target["expr"], values, step=STEP, scrape_interval=SCRAPE_INTERVAL).replace(FALLBACK, "")
    return bool(server.values(expr) if target["instant"] else server.line(expr, STEP))


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_panel_shows_data(prometheus, name):
    """No query is wrong or empty, with the variables as they are when the dashboard is opened."""
    document = DOCUMENTS[name]
    values = _values(prometheus, document)
    empty = [
        f"{panel['title']} / {target['refId']}: {target['expr']}"
        for panel in panels(document)
        for target in panel["targets"]
        if not _shows(prometheus, target, values)
    ]
    assert empty == []


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_mark_is_drawn(prometheus, name):
    """Annotations have moments."""
    document = DOCUMENTS[name]
    values = _values(prometheus, document)
    made = {
        one.place: filled(one.expr, values, step=STEP, scrape_interval=SCRAPE_INTERVAL)
        for one in annotations(document)
    }
    assert len(made) == 4
    assert [place for place, expr in made.items() if not prometheus.line(expr, STEP)] == []


def test_dots_are_traces(prometheus):
    """Where a panel asks for exemplars there are some, and each names a trace."""
    asked = 0
    for document in DOCUMENTS.values():
        values = _values(prometheus, document)
        for panel in panels(document):
            for target in panel["targets"]:
                if target["exemplar"]:
                    asked += 1
                    expr = filled(target["expr"], values, step=STEP, scrape_interval=SCRAPE_INTERVAL)
                    now = time.time()
                    found = prometheus.ask("query_exemplars", query=expr, start=now - 60, end=now)
                    labels = [one["labels"] for series in found for one in series["exemplars"]]
                    assert labels, panel["title"]
                    assert all(len(one["trace_id"]) == 32 for one in labels)
    assert asked > 5


def _page(server: Prometheus, path: str) -> str:
    """A page of the bridge that Prometheus scrapes."""
    (up,) = server.ask("query", query='up{job="otel-bridge"}')["result"]
    with urllib.request.urlopen(f"http://{up['metric']['instance']}{path}", timeout=10) as answer:
        page: str = answer.read().decode()
        return page


def test_a_dot_opens_on_the_bridges_page(prometheus):
    """As the provisioned data source links it: the newest exemplar of a panel is a trace that is kept."""
    document = DOCUMENTS["root-cause"]
    values = _values(prometheus, document)
    (panel,) = (one for one in panels(document) if one["title"] == "Latency")
    expr = filled(panel["targets"][0]["expr"], values, step=STEP, scrape_interval=SCRAPE_INTERVAL)
    now = time.time()
    found = prometheus.ask("query_exemplars", query=expr, start=now - 30, end=now)
    newest = max((one for series in found for one in series["exemplars"]), key=lambda one: one["timestamp"])
    trace_id = newest["labels"]["trace_id"]
    page = _page(prometheus, f"/ui/trace/{trace_id}")
    assert trace_id in page
    assert 'class="bar' in page


def test_a_services_link_leads_to_its_traces_at_the_bridge(prometheus):
    """Every service that Prometheus knows has some, and only its own are listed."""
    found = prometheus.ask("label/service_name/values", **{"match[]": "traces_span_metrics_calls_total"})
    assert len(found) > 2
    links = [
        link["url"]
        for panel in panels(DOCUMENTS["root-cause"])
        for link in panel["fieldConfig"]["defaults"].get("links", ())
        if "bridge" in link["title"]
    ]
    for service in found:
        names = {
            "bridge": "",
            "pod": POD,
            "__data.fields.Service": service,
            "__field.labels.service_name": service,
        }
        for url in {link_filled(url, names) for url in links}:
            listed = _page(prometheus, url).split('id="traces"')[1].split("</section>")[0]
            rows = re.findall(r"<tr>.*?</tr>", listed, re.DOTALL)[1:]
            assert rows, url
            assert all(f"{service}" in row for row in rows)
            if "pod=" in url:
                elsewhere = _page(prometheus, url.replace(POD, "vllm-1"))
                assert "None of these" in elsewhere


@pytest.mark.parametrize("lacking", ["a", "b"])
def test_a_hot_spot_of_one_side_is_in_the_difference(prometheus, lacking):
    """A/B: what the other side does not have at all counts whole, with its sign."""
    document = DOCUMENTS["comparison"]
    values = {**_values(prometheus, document), f"service_{lacking}": "nobody"}
    asked = {
        panel["title"]: [
            filled(target["expr"], values, step=STEP, scrape_interval=SCRAPE_INTERVAL)
            for target in panel["targets"]
        ]
        for panel in panels(document)
    }
    sides, (difference,) = asked["Time lost by cause, A and B"], asked["Time lost by cause, B minus A"]
    there = sides[lacking == "a"]
    at = time.time()
    found = prometheus.by_labels(difference, at)
    assert len(found) >= 2
    sign = 1 if lacking == "a" else -1
    assert found == pytest.approx(
        {labels: sign * value for labels, value in prometheus.by_labels(there, at).items()}
    )


def test_a_wrong_name_would_be_noticed(prometheus):
    """The test can fail: what nobody exposes is empty, and what is no PromQL is refused."""
    values = _values(prometheus, DOCUMENTS["golden"])
    expr = "rate(gen_ai_server_time_to_first_tokn_seconds_count[$__rate_interval])" + FALLBACK
    target = {"instant": False, "expr": expr}
    assert not _shows(prometheus, target, values)
    with pytest.raises(ValueError, match="parse error"):
        prometheus.values("sum by (")

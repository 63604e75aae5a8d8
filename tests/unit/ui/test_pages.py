"""The pages as a visitor gets them: who may look, what answers forbid, that nothing in them is live."""

from __future__ import annotations

import base64
import os
import re
import ssl
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from otel_bridge import catalog
from otel_bridge.batch import PlanBuilder
from otel_bridge.breakers import State
from otel_bridge.receivers.otlp.codec import NativeCodec
from otel_bridge.rules.load import load_rules
from otel_bridge.settings import MetricsSettings
from otel_bridge.states import ActiveAlert, BreakerState, RuleState
from otel_bridge.telemetry import Telemetry
from otel_bridge.telemetry_server import TelemetryServer
from otel_bridge.testing import FakeClock, trace_request
from otel_bridge.ui.config import UiConfig
from otel_bridge.ui.pages import Sources, Ui
from tests.support.processes import ROOT

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'`{{7*7}}${7*7}&amp;"
TOKEN = "s3cret"


class Page(HTMLParser):
    """Which elements, attributes and text a page has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def assert_inert(text: str) -> Page:
    """Nothing of it runs, embeds or leads elsewhere."""
    page = Page(text)
    assert not {"script", "img", "iframe", "object", "embed", "base", "style", "animate"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on"), name
        assert name not in ("style", "srcdoc", "formaction", "xlink:href"), name
        if name in ("href", "src", "action"):
            assert value, name
            assert value.startswith(("/ui", "/metrics", "#")), value
    return page


class Site:
    """The telemetry server with pages, without a service behind them."""

    def __init__(self, **config) -> None:
        self.clock, self.telemetry = FakeClock(), Telemetry()
        self.breakers: list[BreakerState] = []
        self.rules: list[RuleState] = []
        self.not_ready: str | None = None
        sources = Sources(lambda: self.not_ready, lambda: self.breakers, lambda: self.rules)
        self.ui = Ui(UiConfig(traces_per_second=1000), self.telemetry, self.clock, sources)
        columns = PlanBuilder()
        self._step = self.ui.tap(columns)
        self._plan = columns.build()
        settings = MetricsSettings.model_validate({"endpoint": "127.0.0.1:0", **config})
        self.server = TelemetryServer(settings.endpoint, settings, self.telemetry, lambda: None, self.ui)

    def take(self, *spans: dict, **more) -> None:
        """One request through the data path's last step."""
        self._step.process(NativeCodec().scan(trace_request(spans, **more), self._plan))


@asynccontextmanager
async def serving(site: Site, **options):
    """A client's session with it."""
    await site.server.start()
    scheme = "https" if "connector" in options else "http"
    base = f"{scheme}://127.0.0.1:{site.server.port}"
    try:
        async with aiohttp.ClientSession(base, **options) as session:
            yield session
    finally:
        await site.server.stop(0.0)


async def get(session: aiohttp.ClientSession, path: str, **options) -> tuple[int, str]:
    async with session.get(path, allow_redirects=False, **options) as answer:
        return answer.status, await answer.text()


async def test_every_answer_forbids_what_a_page_does_not_need():
    """Scripts, frames, forms to elsewhere, keeping it; errors as well."""
    site = Site()
    async with serving(site) as session:
        for path in (
            "/",
            "/ui",
            "/ui/trace/zz",
            f"/ui/trace/{'0' * 32}",
            "/ui/static/style.css",
            "/ui/static/no",
        ):
            async with session.get(path, allow_redirects=False) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert "script-src" not in policy
                assert answer.headers["Cache-Control"] == "no-store"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["Referrer-Policy"] == "no-referrer"


async def test_nothing_yet_is_said_in_words():
    """An empty bridge has a page, too."""
    async with serving(Site()) as session:
        status, text = await get(session, "/ui")
    page = assert_inert(text)
    assert status == 200
    for words in (
        "None yet",
        "No target has a breaker yet",
        "evaluates no rules",
        "The kernel is not looked at",
    ):
        assert words in page.text


async def test_what_strangers_write_is_text_and_nothing_else():
    """Names, attributes, events, services, reasons of breakers and labels of alerts."""
    site = Site()
    trace = os.urandom(16)
    site.take(
        {
            "trace_id": trace,
            "name": HOSTILE,
            "attributes": {"kernel.match": HOSTILE, "gen_ai.request.model": HOSTILE, HOSTILE: 1},
            "events": [{"name": "kernel." + HOSTILE, "time_unix_nano": 1}],
            "status": {"code": 2, "message": "a secret"},
        },
        resource={"service.name": HOSTILE},
    )
    site.breakers = [BreakerState(HOSTILE, State.OPEN, "auto", 1.0, 2.0, "error_rate", HOSTILE)]
    alert = ActiveAlert({"model": HOSTILE}, [trace], 1, HOSTILE)
    site.rules = [RuleState("Rule", "critical", [alert], 0, HOSTILE)]
    async with serving(site) as session:
        _, overview = await get(session, "/ui")
        status, detail = await get(session, f"/ui/trace/{trace.hex()}")
    assert status == 200
    for text in (overview, detail):
        page = assert_inert(text)
        assert "<script>alert(1)" in page.text
        assert "{{7*7}}" in page.text
        assert "a secret" not in page.text
    assert f"/ui/trace/{trace.hex()}" in [value for _, value in Page(overview).attributes]


@given(st.text(), st.text())
async def test_no_text_becomes_markup(name, service):
    """Not one element more than with a plain name."""
    pages = []
    for names in ((name, service), ("n", "s")):
        site = Site()
        site.take({"trace_id": b"t" * 16, "name": names[0]}, resource={"service.name": names[1]})
        async with serving(site) as session:
            pages.append(assert_inert((await get(session, f"/ui/trace/{(b't' * 16).hex()}"))[1]))
    assert pages[0].tags == pages[1].tags


async def test_traces_are_found_by_their_id_however_it_is_written():
    """Dashboards link to /ui/trace/<id>; the form asks with a query."""
    site = Site()
    trace = bytes.fromhex("abcdef0123456789abcdef0123456789")
    site.take({"trace_id": trace, "name": "found"})
    async with serving(site) as session:
        for written in (trace.hex(), trace.hex().upper()):
            assert (await get(session, f"/ui/trace/{written}"))[0] == 200
        async with session.get("/ui/trace", params={"id": f" {trace.hex().upper()} "}) as answer:
            assert answer.url.path == f"/ui/trace/{trace.hex()}"
            assert "found" in await answer.text()
        assert (await get(session, "/ui/trace?id=nonsense"))[0] == 400
        assert (await get(session, "/ui/trace/" + "g" * 32))[0] == 400
        status, text = await get(session, "/ui/trace/" + "1" * 32)
    assert status == 404
    assert "service.ui.max_bytes" in assert_inert(text).text


async def test_the_list_is_narrowed_by_a_query():
    """To marked traces, or to one service: where dashboards' links lead."""
    site = Site()
    site.take(
        {"trace_id": b"a" * 16, "name": "plain", "attributes": {"k8s.pod.name": "vllm-0"}},
        resource={"service.name": "one", "k8s.pod.name": "a node's"},
    )
    site.take(
        {"trace_id": b"b" * 16, "name": "broken", "status": {"code": 2}},
        resource={"service.name": "two", "k8s.pod.name": "vllm-1"},
    )
    async with serving(site) as session:
        for query, shown in (
            ("", {"plain", "broken"}),
            ("?only=marked", {"broken"}),
            ("?service=one", {"plain"}),
            ("?service=one&pod=vllm-0", {"plain"}),
            ("?service=one&pod=vllm-1", set()),
            ("?pod=vllm-1", {"broken"}),
            ("?service=none", set()),
        ):
            text = assert_inert((await get(session, f"/ui{query}"))[1]).text
            assert {name for name in ("plain", "broken") if name in text} == shown, query


async def test_a_page_refreshes_only_when_asked_to():
    """By a choice from a list: nothing of the query reaches a header."""
    async with serving(Site()) as session:
        for query, header in (
            ("", None),
            ("?refresh=5", "5"),
            ("?refresh=1", None),
            ("?refresh=5;url=//x", None),
        ):
            async with session.get(f"/ui{query}") as answer:
                assert answer.headers.get("Refresh") == header, query


async def test_breakers_and_rules_are_listed():
    """States in words; what fires first, with the traces it is about."""
    site = Site()
    site.breakers = [
        BreakerState("llama/8b", State.HALF_OPEN, "auto", 3.0, None, "open_time_ended", ""),
        BreakerState("llama", State.CLOSED, "forced_open", 3.0, 60.0, "operator", "weights"),
    ]
    site.rules = [
        RuleState("Quiet", "info", [], 0, "Quiet"),
        RuleState("Waiting", "warning", [], 2, "Waiting"),
        RuleState("Loud", "critical", [ActiveAlert({"model": "m"}, [b"e" * 16], 1, "so it is")], 0, "Loud"),
    ]
    async with serving(site) as session:
        text = assert_inert((await get(session, "/ui"))[1]).text
    for words in ("half-open", "forced open", "60 s", "weights", "model=m", "1 quiet"):
        assert words in text
    assert text.index("Loud") < text.index("Waiting") < text.index("Quiet")


async def test_what_needs_attention_comes_first():
    """What fires, is open or broken stands before all lists, the grave before the rest, with what to do."""
    site = Site()
    trace = b"e" * 16
    site.not_ready = "the port is not open yet"
    site.breakers = [
        BreakerState("half", State.HALF_OPEN, "auto", 3.0, None, "open_time_ended", ""),
        BreakerState("shut", State.OPEN, "auto", 7.0, 53.0, "slow_calls", "5 calls were slow"),
        BreakerState("fine", State.CLOSED, "auto", 3.0, None, "none", ""),
    ]
    began = site.clock.time_ns() - 90_000_000_000
    site.rules = [
        RuleState("QueueSpike", "warning", [ActiveAlert({}, [], began, "it grows")], 0, "QueueSpike"),
        RuleState("Own", "critical", [ActiveAlert({"gpu": "0"}, [trace], began, "a loss")], 0, "Own"),
        RuleState("Quiet", "critical", [], 0, "Quiet"),
    ]
    site.telemetry.gauge(catalog.EXPORTER_QUEUE_BYTES).labels("otlp", "disk").set(95.0)
    site.telemetry.gauge(catalog.EXPORTER_QUEUE_CAPACITY).labels("otlp", "disk").set(100.0)
    site.telemetry.gauge(catalog.KERNEL_PROBE_LOADED).labels("tcp").set(0)
    async with serving(site) as session:
        text = (await get(session, "/ui"))[1]
    assert_inert(text)
    rows = [Page(row).text.split() for row in attention(text)]
    said = [" ".join(row) for row in rows]
    assert said == [
        "not ready the bridge the port is not open yet",
        "full destination otlp 95 B of 100 B wait",
        "open breaker of shut 7 s 5 calls were slow",
        f"firing Own (gpu 0) 90 s a loss trace {trace.hex()[-8:]}",
        "half-open breaker of half 3 s open time ended",
        "firing QueueSpike 90 s it grows what to do",
        "not loaded probes tcp otel-bridge doctor says why",
    ]
    assert text.index('id="attention"') < text.index('id="traces"') < text.index('id="breakers"')
    assert f'href="/ui/trace/{trace.hex()}"' in text
    assert 'href="/ui/runbook#queuespike"' in text


async def test_nothing_that_needs_attention_is_said_in_words():
    """A page without trouble does not make a visitor look for it."""
    async with serving(Site()) as session:
        text = (await get(session, "/ui"))[1]
    assert attention(text) == []
    assert "No rule fires, no breaker refuses" in assert_inert(text).text


def attention(page: str) -> list[str]:
    """The rows of the first section."""
    section = between(page, 'id="attention"', "</section>")
    return re.findall(r"<tr class.*?</tr>", section, re.DOTALL)


def between(page: str, begin: str, end: str) -> str:
    """A part of a page."""
    return page.partition(begin)[2].partition(end)[0]


async def test_every_shipped_rule_leads_to_its_entry():
    """The page has an anchor for each, as alerts' runbook_url ends."""
    rules = [item.rule for item in load_rules([ROOT / "alerts" / "rules"])]
    async with serving(Site()) as session:
        status, text = await get(session, "/ui/runbook")
    page = assert_inert(text)
    anchors = {value for name, value in page.attributes if name == "id"}
    assert status == 200
    assert {rule.runbook_entry.lower() for rule in rules} <= anchors
    assert len(rules) > 20
    for words in ("The KV cache is nearly full", "kernel.tcp.retransmits", "The number tells which"):
        assert words in page.text
    assert "`" not in page.text


async def test_the_slowest_traces_come_first():
    """Five of them before the list once there are more, and the whole list on demand."""
    site = Site()
    for number in range(1, 8):
        start = 1_000_000_000_000
        site.take(
            {
                "trace_id": bytes([number] * 16),
                "name": f"lasts {number} s",
                "start_time_unix_nano": start,
                "end_time_unix_nano": start + number * 1_000_000_000,
            }
        )
    async with serving(site) as session:
        first = (await get(session, "/ui"))[1]
        ordered = (await get(session, "/ui?order=slowest"))[1]
    section = between(first, 'id="slowest"', "</section>")
    assert re.findall(r"lasts (\d) s", section) == ["7", "6", "5", "4", "3"]
    assert re.findall(r"lasts (\d) s", ordered) == ["7", "6", "5", "4", "3", "2", "1"]


async def test_a_choice_keeps_the_others():
    """Who narrowed the list to a service and then looks at failures is still at that service."""
    site = Site()
    site.take(
        {"trace_id": b"a" * 16, "name": "here", "status": {"code": 2}},
        resource={"service.name": "a&b", "k8s.pod.name": "vllm-0"},
    )
    query = {"service": "a&b", "pod": "vllm-0", "only": "marked", "order": "slowest", "refresh": "10"}
    async with serving(site) as session:
        text = (await get(session, "/ui?" + urlencode(query)))[1]
        links = [value for name, value in Page(text).attributes if name == "href" and value]
        addresses = [value for value in links if "?" in value]
        assert len(addresses) >= 4
        for address in addresses:
            asked = dict(parse_qsl(urlsplit(address).query))
            gone = query.items() - asked.items()
            # One choice each; "All" undoes what narrows the list.
            assert len(gone) <= 1 or {key for key, _ in gone} == {"service", "pod", "only"}
            assert "here" in (await get(session, address))[1]


# Who may look


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example:9464"},
        {"Host": ""},
        {"X-Forwarded-For": "203.0.113.7"},
        {"Forwarded": "for=203.0.113.7"},
    ],
    ids=str,
)
async def test_without_tokens_only_visitors_of_this_machine_look(headers):
    """Neither a name that was made to lead here, nor whoever a proxy speaks for."""
    async with serving(Site()) as session:
        status, text = await get(session, "/ui", headers=headers)
        assert status == 403
        assert_inert(text)
        assert (await get(session, "/metrics", headers=headers))[0] == 200
        for host in ("localhost:9464", "127.0.0.1", "[::1]:9464"):
            assert (await get(session, "/ui", headers={"Host": host}))[0] == 200, host


async def test_a_stranger_is_told_what_would_let_them_in():
    """Served on every address, asked from one that is not loopback."""
    site = Site(endpoint="0.0.0.0:0")
    async with serving(site):
        address = own_address()
        if address is None:
            pytest.skip("this machine has no address but loopback")
        async with aiohttp.ClientSession(f"http://{address}:{site.server.port}") as session:
            status, text = await get(session, "/ui")
            assert status == 403
            assert "service.telemetry.metrics.auth" in Page(text).text
            assert (await get(session, "/metrics"))[0] == 200


async def test_with_tokens_everybody_needs_one():
    """As bearer, or as the password that a browser asks for; probes need none."""
    site = Site(auth={"bearer_tokens": [TOKEN]})
    async with serving(site) as session:
        for path in ("/ui", "/metrics"):
            async with session.get(path) as answer:
                assert answer.status == 401
                assert "WWW-Authenticate" in answer.headers
            assert (await get(session, path, headers={"Authorization": "Bearer wrong"}))[0] == 401
            assert (await get(session, path, headers={"Authorization": f"Bearer {TOKEN}"}))[0] == 200
        basic = {password: base64.b64encode(f"me:{password}".encode()).decode() for password in (TOKEN, "no")}
        assert (await get(session, "/ui", headers={"Authorization": f"Basic {basic[TOKEN]}"}))[0] == 200
        for bad in (basic["no"], "!!!", "/w=="):
            status, text = await get(session, "/ui", headers={"Authorization": f"Basic {bad}"})
            assert status == 401
            assert_inert(text)
            assert TOKEN not in text
        assert (await get(session, "/healthz"))[0] == 200


async def test_with_a_certificate_it_speaks_tls(tmp_path):
    """Metrics and pages alike."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    site = Site(tls={"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")})
    async with serving(site, connector=aiohttp.TCPConnector(ssl=trusted)) as session:
        assert (await get(session, "/ui"))[0] == 200
        assert (await get(session, "/metrics"))[0] == 200


def own_address() -> str | None:
    """An address of this machine that is not loopback."""
    import socket

    import psutil

    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family == socket.AF_INET and not one.address.startswith("127."):
                return one.address
    return None

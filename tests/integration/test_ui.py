"""The pages in a real browser: read by eye in two themes, by keyboard, by what a screen reader is told."""

from __future__ import annotations

import itertools
import os
import re
import time
import urllib.request
from dataclasses import dataclass

import pytest
import yaml
from axe_playwright_python.sync_playwright import Axe

from otel_bridge.testing import key_values, trace_request
from tests.support.browser import chromium
from tests.support.ports import free_port
from tests.support.processes import Bridge, eventually, running
from tests.support.sinks import GrpcSink

pytestmark = pytest.mark.slow

MS = 1_000_000
TRACE = os.urandom(16)
HOSTILE = '</a><script>document.title="run"</script><img src=x onerror=alert(1)>'
RULES = {
    "rules": [
        {
            "name": "EngineFails",
            "when": {"span": "server", "is": {"status": "error"}, "within": "10s"},
            "by": ["service.name"],
            "keep_firing_for": "10m",
            "severity": "critical",
            "summary": "a span failed",
            "engine": "streaming",
            "reason": "a test",
        }
    ]
}


@dataclass(frozen=True)
class Site:
    """A bridge that was given something to show."""

    url: str

    @property
    def trace(self) -> str:
        return f"{self.url}/ui/trace/{TRACE.hex()}"

    @property
    def pages(self) -> dict[str, str]:
        """Every kind of page."""
        return {
            "overview": f"{self.url}/ui",
            "marked": f"{self.url}/ui?only=marked&refresh=30",
            "trace": self.trace,
            "runbook": f"{self.url}/ui/runbook",
            "unknown": f"{self.url}/ui/trace/{'0' * 32}",
            "message": f"{self.url}/ui/trace/nonsense",
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Slow calls trip a breaker, a failed one fires a rule; kernel events as a node's bridge wrote them."""
    directory = tmp_path_factory.mktemp("ui")
    rules = directory / "rules.yaml"
    rules.write_text(yaml.safe_dump(RULES))
    with GrpcSink() as sink:
        config = {
            "exporters": {"otlp": {"endpoint": f"127.0.0.1:{sink.port}"}},
            "rules": {"shipped": False, "files": [str(rules)]},
            "control": {
                "enabled": True,
                "state": {"file": str(directory / "breakers.db")},
                "operators": {"socket": str(directory / "operators.sock")},
                "decisions": {"http": {"endpoint": f"127.0.0.1:{free_port()}"}},
            },
        }
        with running(Bridge(directory, config)) as bridge:
            send(bridge, *calls(), service="gateway")
            send(bridge, *request(), service="engine")
            url = f"http://127.0.0.1:{bridge.metrics_port}"
            eventually("a breaker opens", lambda: "slow calls" in text(url))
            eventually("the rule fires", lambda: "EngineFails (service.name engine)" in text(url))
            yield Site(url)


def text(url: str) -> str:
    with urllib.request.urlopen(f"{url}/ui", timeout=10) as answer:
        page: str = answer.read().decode()
        return page


def send(bridge: Bridge, *spans: dict, service: str) -> None:
    resource = {"service.name": service, "gen_ai.request.model": "llama"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{bridge.http_port}/v1/traces",
        data=trace_request(spans, resource=resource),
        headers={"Content-Type": "application/x-protobuf"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


def calls() -> list[dict]:
    """Slow calls, one after the other."""
    now = time.time_ns()
    return [
        {
            "trace_id": os.urandom(16),
            "span_id": os.urandom(8),
            "name": "POST /v1/chat/completions",
            "start_time_unix_nano": now - 3000 * MS + n * MS,
            "end_time_unix_nano": now - 10 * MS + n * MS,
            "attributes": {"gen_ai.request.model": "llama", "gen_ai.operation.name": "chat"},
        }
        for n in range(8)
    ]


def request() -> list[dict]:
    """One request over three spans, the innermost failed and hit by the kernel; names are hostile."""
    now = time.time_ns()

    def span(number: int, parent: int, at: int, lasts: int, **fields) -> dict:
        return {
            "trace_id": TRACE,
            "span_id": number.to_bytes(8, "big"),
            "parent_span_id": parent.to_bytes(8, "big") if parent else b"",
            "start_time_unix_nano": now + at * MS,
            "end_time_unix_nano": now + (at + lasts) * MS,
            **fields,
        }

    waits = {
        "name": "kernel.sched.wait",
        "time_unix_nano": now + 300 * MS,
        "attributes": key_values({"kernel.duration": 150 * MS, "kernel.match": "thread"}),
    }
    retransmit = {"name": "kernel.tcp.retransmit", "time_unix_nano": now + 500 * MS}
    noted = {"kernel.match": "thread", "kernel.sched.run_queue.time": 150 * MS, "kernel.tcp.retransmits": 1}
    return [
        span(1, 0, 0, 900, name="POST /v1/chat/completions"),
        span(2, 1, 50, 800, name=HOSTILE, kind=3),
        span(
            3,
            2,
            100,
            700,
            name="llm_request",
            attributes=noted,
            events=[waits, retransmit],
            status={"code": 2},
        ),
    ]


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(params=["light", "dark"])
def scheme(request):
    return request.param


@pytest.mark.parametrize("name", ["overview", "marked", "trace", "runbook", "unknown", "message"])
def test_no_page_breaks_a_rule_of_accessibility(browser, site, scheme, name):
    """axe-core's rules: contrast of every text, landmarks, headings, labels, tables, focusable regions."""
    page = browser.new_page(color_scheme=scheme)
    page.goto(site.pages[name])
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    assert "color-contrast" in {one["id"] for one in results.response["passes"]}
    page.close()


def test_bars_and_marks_stand_out_from_the_ground(browser, site, scheme):
    """At least 3 : 1, and the two themes differ."""
    page = browser.new_page(color_scheme=scheme)
    page.goto(site.trace)
    ground = colour(page, "html", "background-color")
    assert (luminance(ground) > 0.5) == (scheme == "light")
    for selector in (".timeline .bar", ".timeline .bar.failed", ".timeline .mark", ".timeline .moment"):
        assert contrast(colour(page, selector, "fill"), ground) >= 3, selector
    assert contrast(colour(page, "main", "color"), ground) >= 7
    page.close()


def test_without_scripts_everything_is_there_and_nothing_comes_from_elsewhere(browser, site):
    """From the list to a trace to a span, as a visitor with JavaScript off."""
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(site.url)
    assert page.url == f"{site.url}/ui"
    page.get_by_role("link", name=re.compile("Failed or hit")).click()
    page.get_by_role("row", name=re.compile("sched.run_queue 150 ms")).get_by_role("link").click()
    assert page.url == site.trace
    page.get_by_role("link", name="llm_request", exact=True).click()
    assert page.url.endswith("#span-0000000000000003")
    assert page.get_by_role("heading", name="llm_request failed").is_visible()
    page.get_by_label("Trace id").fill(TRACE.hex())
    page.get_by_role("button", name="Show").click()
    assert page.url == site.trace
    assert {url.startswith(site.url + "/") for url in asked} == {True}
    assert complaints == []
    context.close()


def test_a_strangers_name_does_not_run(browser, site):
    """With JavaScript on: it is read, not obeyed; nor would be a script that got into the page somehow."""
    page = browser.new_page()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(site.trace)
    assert page.get_by_role("heading", name=HOSTILE).is_visible()
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(2)>')")
    page.wait_for_load_state("networkidle")
    assert page.title().startswith("POST /v1/chat/completions")
    assert dialogs == []
    page.close()


def test_a_keyboard_is_enough(browser, site):
    """The first stop skips to the content; every link and field is reached, and seen where it is."""
    page = browser.new_page()
    page.goto(site.trace)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(site.trace)
    wanted = page.evaluate("document.querySelectorAll('a, input, button, summary, [tabindex=\"0\"]').length")
    reached = 0
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        reached += 1
        width = page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
        assert width >= 2, page.evaluate("document.activeElement.outerHTML")
    assert reached == wanted
    page.close()


def test_a_screen_reader_is_told_what_the_eye_sees(browser, site):
    """Landmarks, headings in order, and of each span its time and its kernel events in words."""
    page = browser.new_page()
    page.goto(site.trace)
    for role in ("banner", "main", "search"):
        assert page.get_by_role(role).count() == 1, role
    assert page.get_by_role("navigation", name="Pages").count() == 1
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    row = page.get_by_role("table").get_by_role("row", name=re.compile("llm_request"))
    assert row.get_by_role("rowheader").inner_text().split() == ["llm_request", "failed"]
    label = row.get_by_role("img").get_attribute("aria-label")
    assert " ".join(label.split()) == "from 100 ms, for 700 ms; 2 kernel events"
    overview = browser.new_page()
    overview.goto(site.pages["overview"])
    names = [one.inner_text() for one in overview.get_by_role("heading", level=2).all()]
    assert names == [
        "Needs attention",
        "Slowest of the traces kept",
        "Recent traces",
        "Breakers",
        "Rules",
        "Kernel probes",
        "Destinations",
    ]
    for table, row in (
        ("Needs attention", "firing EngineFails.*a span failed trace"),
        ("Needs attention", "open breaker of gateway.llama.*slower than"),
        ("Rules", "EngineFails.*firing.*engine"),
    ):
        group = overview.get_by_role("group", name=table)
        assert group.get_by_role("row", name=re.compile(row)).count() == 1, row
    page.close()
    overview.close()


def test_what_needs_attention_is_seen_without_scrolling(browser, site):
    """On a laptop's screen: what is open and fires, and the first of the slow traces."""
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.goto(site.pages["overview"])
    for text in ("breaker of gateway/llama", "EngineFails (service.name engine)"):
        assert page.get_by_role("link", name=text).bounding_box()["y"] < 360
    slowest = page.get_by_role("group", name="Slowest").get_by_role("row").nth(1)
    assert "2.99 s" in slowest.inner_text()
    assert slowest.bounding_box()["y"] < 720
    page.close()


def test_a_visitor_gets_from_an_alert_to_what_caused_it(browser, site):
    """By links alone: from the alert's row to the trace, its slow part named."""
    page = browser.new_page()
    page.goto(site.pages["overview"])
    page.get_by_role("group", name="Needs attention").get_by_role("link", name=TRACE.hex()[-8:]).click()
    assert page.url == site.trace
    assert "Most time: 700 ms (78%) in llm_request of engine" in page.inner_text("main")
    page.close()


@pytest.mark.parametrize("name", ["overview", "trace", "runbook"])
def test_it_fits_a_narrow_screen(browser, site, name):
    """320 pixels, as at 400 % zoom: only tables scroll sideways."""
    page = browser.new_page(viewport={"width": 320, "height": 640})
    page.goto(site.pages[name])
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 320
    page.close()


def test_nothing_moves_for_who_wants_nothing_to_move(browser, site):
    """Nor does the page reload by itself."""
    page = browser.new_page(reduced_motion="reduce")
    answer = page.goto(site.pages["overview"])
    assert "refresh" not in answer.headers
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    assert page.evaluate("document.getAnimations().length") == 0
    page.close()


def colour(page, selector: str, name: str) -> tuple[float, ...]:
    """A computed colour, red to blue, 0 to 1."""
    value = page.evaluate(
        "([selector, name]) => getComputedStyle(document.querySelector(selector)).getPropertyValue(name)",
        [selector, name],
    )
    return tuple(int(part) / 255 for part in re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", value).groups())


def luminance(rgb: tuple[float, ...]) -> float:
    """WCAG 2's relative luminance."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """WCAG 2's contrast ratio."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)

"""Alerts in, as Alertmanager really sends them: cases.md am-mixed, am-refire, am-lease; and bad input."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
from typing import Any, Self

import aiohttp
import pytest
import trustme
from aiohttp import web

from otel_bridge import catalog
from otel_bridge.control.alertmanager import AlertmanagerWebhook
from otel_bridge.control.alerts import AlertBook, read_payload, unix_ns
from otel_bridge.errors import MalformedRequestError
from otel_bridge.testing import FakeClock
from tests.support.control import World

START = "2023-11-14T22:13:19.113904445Z"
"""A moment before the fake clock's beginning."""


def alert(status: str = "firing", *, ends: str = "0001-01-01T00:00:00Z", **labels: str) -> dict[str, Any]:
    labels = {"alertname": "GpuMemHigh", "service": "llama", **labels}
    return {
        "status": status,
        "labels": labels,
        "annotations": {"summary": "memory"},
        "startsAt": START,
        "endsAt": ends,
        "generatorURL": "http://prometheus/graph",
        "fingerprint": "",
    }


def payload(*alerts: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps(
        {
            "version": "4",
            "groupKey": "{}",
            "truncatedAlerts": 0,
            "status": "firing",
            "receiver": "bridge",
            "groupLabels": {},
            "commonLabels": {},
            "commonAnnotations": {},
            "externalURL": "http://alertmanager",
            "notification_reason": "new",
            "routeLabels": {},
            "alerts": list(alerts),
            **fields,
        }
    ).encode()


class Book:
    """An alert book on a world of its own."""

    def __init__(self, world: World | None = None, **config: Any) -> None:
        self.world = world or World(alertmanager=config)
        assert self.world.config.alertmanager is not None
        self.book = AlertBook(
            self.world.config.alertmanager,
            self.world.board,
            self.world.sources,
            self.world.telemetry,
            self.world.clock,
        )

    def take(self, *alerts: dict[str, Any]) -> list[str]:
        found = read_payload(payload(*alerts))
        self.book.note_incomplete(found)
        return [self.book.apply(one, 1) for one in found.alerts]

    def now(self, seconds: float = 0.0) -> str:
        from datetime import UTC, datetime

        moment = self.world.clock.time_ns() / 1e9 + seconds
        return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def test_a_group_of_firing_and_resolved_alerts():
    """cases.md am-mixed: each alert's own status counts, and empty fingerprints do not merge the two."""
    book = Book()
    book.take(alert(service="qwen", status_label="x"))
    mixed = [alert(), alert("resolved", service="qwen", status_label="x", ends=book.now())]
    for one in mixed:
        one["labels"]["status"] = "firing" if one["status"] == "firing" else "resolved"
    # The labels differ by "status" from the first, so that qwen's is another alert there.
    assert book.take(mixed[0]) == ["opened"]
    assert book.world.state("llama") == "open"
    assert book.take(alert("resolved", service="qwen", status_label="x", ends=book.now())) == ["resolved"]
    assert book.world.state("qwen") == "half_open"


async def test_a_mixed_group_as_it_was_sent():
    """cases.md am-mixed to the letter, over HTTP: Alertmanager's clock eight hours ahead, unknown fields."""
    clock = FakeClock(unix_ns("2019-01-22T11:47:18+08:00"))
    async with Served(World(clock, alertmanager={"endpoint": "127.0.0.1:0"})) as served:
        world = served.book.world

        def one(status: str, service: str, ended: str = "0001-01-01T00:00:00Z") -> dict[str, Any]:
            found = alert(status, service=service, ends=ended)
            found["labels"]["status"] = "resolved" if service == "qwen" else "firing"
            return found | {"startsAt": "2019-01-22T11:47:17.113904445+08:00"}

        assert await served.post(payload(one("firing", "qwen"))) == 200
        await served.settled()
        assert world.state("qwen") == "open"
        await clock.advance(170)  # within the lease
        ended = "2019-01-22T11:50:17.113904445+08:00"
        mixed = payload(one("firing", "llama"), one("resolved", "qwen", ended), status="firing")
        assert await served.post(mixed) == 200
        await served.settled()
        assert {key: world.state(key) for key in ("llama", "qwen")} == {"llama": "open", "qwen": "half_open"}
        assert world.record("qwen").cause.value == "resolved"
        assert world.telemetry.value(catalog.CONTROL_ALERTS, outcome="malformed") == 0


async def test_a_webhook_that_is_sent_once_more_by_somebody_else():
    """Its bytes with a good token, an hour later: a resolve closes nothing, a firing lasts one lease."""
    token = {"Authorization": "Bearer right"}
    async with Served(auth={"bearer_tokens": ["right"]}, lease="60s") as served:
        world = served.book.world
        firing, resolved = payload(alert()), payload(alert("resolved", ends=served.book.now(1)))
        for body in (firing, resolved):
            await world.pass_time(2)
            assert await served.post(body, headers=token) == 200
            await served.settled()
        await world.pass_time(3600)
        assert await served.post(payload(alert()), headers=token) == 200
        await served.settled()
        assert await served.post(resolved, headers=token) == 200
        await served.settled()
        assert world.state("llama") == "open"
        assert world.telemetry.value(catalog.CONTROL_ALERTS, outcome="replayed") == 1
        await world.pass_time(61)
        assert world.state("llama") == "half_open"


def test_a_label_called_status_is_only_a_label():
    """The alert's status is beside its labels."""
    book = Book()
    labelled = alert("firing")
    labelled["labels"]["status"] = "resolved"
    assert book.take(labelled) == ["opened"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2019-01-22T11:47:17.113904445+08:00", 1548128837113904445),
        ("2019-01-22T03:47:17Z", 1548128837000000000),
        ("2019-01-22T03:47:17.1Z", 1548128837100000000),
        ("0001-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00+08:00", 0),
        ("9999-12-31T23:59:59Z", 253402300799000000000),
        ("yesterday", 0),
        ("2019-13-45T99:99:99Z", 0),
        (None, 0),
        (5, 0),
    ],
)
def test_times(text, expected):
    """Nine digits, any zone; the zero time means "not ended", and is not converted."""
    assert unix_ns(text) == expected


async def test_refiring_with_the_same_start(tmp_path):
    """cases.md am-refire: two opens, two closes, and nothing else in the audit log."""
    config = {"alertmanager": {}, "policies": [{"on_resolve": "close"}]}
    world = World(file=tmp_path / "s", **config)
    book = Book(world)
    outcomes = book.take(alert())
    await world.clock.advance(16)
    world.store.close(5)
    world = World(world.clock, tmp_path / "s", **config)
    book = Book(world)
    outcomes += book.take(alert())  # another peer
    for _ in range(14):
        outcomes += book.take(alert())
    await world.clock.advance(10)
    outcomes += book.take(alert("resolved", ends=book.now()))
    assert world.state("llama") == "closed"
    await world.clock.advance(5)
    outcomes += book.take(alert())
    assert world.state("llama") == "open"
    await world.clock.advance(70)
    outcomes += book.take(alert("resolved", ends=book.now()))
    outcomes += book.take(alert("resolved", ends=book.now()))
    assert world.state("llama") == "closed"
    assert outcomes == ["opened", *["renewed"] * 15, "resolved", "opened", "resolved", "duplicate"]
    moves = [entry.after for entry in world.history("llama") if entry.reason != "taken up after a restart"]
    assert moves == ["open", "closed", "open", "closed"]
    world.store.close(5)


async def test_an_alert_that_is_renewed_never_ends():
    """cases.md am-lease (a): repeated each minute for 30 minutes, without a half-open gap."""
    book = Book(lease="3m")
    for _ in range(30):
        book.take(alert())
        await book.world.pass_time(60)
        assert book.world.state("llama") == "open"
    assert len(book.world.history("llama")) == 1


async def test_a_lost_resolve_is_healed_by_the_lease():
    """cases.md am-lease (b), (c): half-open at the end of the lease, and the audit log says why."""
    book = Book(lease="3m")
    book.take(alert())
    await book.world.pass_time(179)
    assert book.world.state("llama") == "open"
    await book.world.pass_time(1)
    assert book.world.state("llama") == "half_open"
    assert book.world.history("llama")[-1].reason == "its lease ran out"
    assert book.world.telemetry.value(catalog.CONTROL_LEASES_ENDED) == 1


async def test_a_repeat_interval_longer_than_the_lease_is_said(capsys):
    """cases.md am-lease (d): noticed at the first repeat."""
    book = Book(lease="3m")
    book.take(alert())
    await book.world.pass_time(4 * 3600)
    assert book.take(alert()) == ["opened"]
    assert book.world.telemetry.value(catalog.CONTROL_LATE_RENEWALS) == 1
    assert "repeat_interval" in "".join(capsys.readouterr())


async def test_a_replayed_resolve_does_not_close():
    """One that ended before its alert was last applied, by more than clocks may differ."""
    book = Book()
    book.take(alert())
    old = alert("resolved", ends=book.now(1))
    await book.world.clock.advance(2)
    assert book.take(old) == ["resolved"]
    await book.world.clock.advance(120)
    book.take(alert())
    assert book.take(old) == ["replayed"]
    assert book.world.state("llama") == "open"
    assert book.world.history("llama")[-1].cause == "replayed"


def test_an_alert_from_the_future_is_refused():
    """Nobody's clock is an hour ahead."""
    book = Book()
    future = alert()
    future["startsAt"] = book.now(3600)
    assert book.take(future) == ["replayed"]
    assert book.world.board.find("llama") is None


def test_routes_choose_targets():
    """The first that fits; patterns are of the whole value; an alert that fits none moves nothing."""
    book = Book(
        routes=[
            {"match": {"alertname": "Gpu.*", "severity": "critical|page"}, "target": "{service}/{model}"},
            {"match": {"alertname": "Node"}, "target": "fixed"},
        ]
    )
    assert book.take(alert(severity="critical", model="meta/8b")) == ["opened"]
    assert book.take(alert(severity="critical2")) == ["unmatched"]
    assert book.take(alert(alertname="Node")) == ["opened"]
    assert {breaker.key for breaker in book.world.board.breakers()} == {"llama/meta%2F8b", "fixed"}


@pytest.mark.parametrize(
    "service",
    ["$(touch /tmp/x)", "../../etc/passwd", "a;b|c", "http://evil/", "\x1b[31m", "%n{0}", "{model}"],
)
def test_labels_are_data(service):
    """Shell, path, URL and terminal characters become a quoted name, of one part."""
    book = Book()
    book.take(alert(service=service))
    (breaker,) = book.world.board.breakers()
    assert "/" not in breaker.key
    assert set(breaker.key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~:@+%")


def test_unknown_targets_are_refused_and_audited():
    """Not allowed by the configuration, or without a name."""
    world = World(alertmanager={}, targets={"allowed": ["qwen*"]})
    book = Book(world)
    assert book.take(alert()) == ["unknown_target"]
    assert book.take(alert(service="")) == ["unknown_target"]
    assert not world.board.breakers()
    assert [entry.cause for entry in world.history()] == ["unknown_target"] * 2


def test_a_disabled_breaker_is_not_opened():
    """And the alert is remembered by nobody, so that its next repeat opens when it is enabled again."""
    from otel_bridge.control import machine
    from otel_bridge.control.machine import Mode

    book = Book()
    breaker = book.world.board.obtain("llama")
    book.world.board.operate(breaker, breaker.step(machine.disable, "x"), "me", "x")
    assert book.take(alert()) == ["disabled"]
    assert book.world.decider.decide_here("llama", "").allow
    book.world.board.operate(breaker, breaker.step(machine.decide_by_itself, Mode.AUTO, "x"), "me", "x")
    assert book.take(alert()) == ["opened"]


def test_an_operator_s_close_stands_against_alerts_that_fire():
    """Until they have resolved."""
    from otel_bridge.control import machine

    book = Book()
    book.take(alert())
    breaker = book.world.board.find("llama")
    book.world.board.operate(breaker, breaker.step(machine.close, "known"), "me", "known")
    assert book.take(alert()) == ["renewed"]
    assert book.world.state("llama") == "closed"
    assert book.take(alert(gpu="another")) == ["opened"]
    assert book.world.state("llama") == "open"


def test_a_flood_of_alerts_is_bounded():
    """10,000 of one target: some are told apart, the rest share one hold that only its lease ends."""
    book = Book()
    book.take(*[alert(pod=str(number)) for number in range(10_000)])
    assert len(book.world.record("llama").holds) == 257
    assert len(book.world.history("llama")) == 1
    book.take(*[alert("resolved", ends=book.now(1), pod=str(number)) for number in range(10_000)])
    assert book.world.state("llama") == "open"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version": "3", "alerts": []}',
        b'{"version": "4"}',
        b'{"version": "4", "alerts": {}}',
        b'{"version": 4, "alerts": []}',
    ],
)
def test_what_is_no_webhook(body):
    """Refused for good: it would be the same again."""
    with pytest.raises(MalformedRequestError):
        read_payload(body)


@pytest.mark.parametrize(
    "broken",
    [
        None,
        5,
        {},
        {"status": "pending", "labels": {"a": "b"}},
        {"status": "firing"},
        {"status": "firing", "labels": {}},
        {"status": "firing", "labels": {"a": 1}},
        {"status": "firing", "labels": {str(number): "x" for number in range(65)}},
    ],
)
def test_a_broken_alert_costs_only_itself(broken):
    """The others of its webhook are applied."""
    book = Book()
    assert book.take(broken, alert()) == ["opened"]
    assert book.world.telemetry.value(catalog.CONTROL_ALERTS, outcome="malformed") == 1


# The listener


class Served:
    """A webhook that listens."""

    def __init__(self, world: World | None = None, **config: Any) -> None:
        self.book = Book(world, endpoint="127.0.0.1:0", **config)
        assert self.book.world.config.alertmanager is not None
        self.webhook = AlertmanagerWebhook(
            self.book.world.config.alertmanager,
            self.book.book,
            self.book.world.telemetry,
            self.book.world.clock,
        )

    async def __aenter__(self) -> Self:
        await self.webhook.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.webhook.stop(5)

    async def post(
        self, body: bytes, path: str = "/v1/alertmanager", scheme: str = "http", **options: Any
    ) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                f"{scheme}://localhost:{self.webhook.port}{path}", data=io.BytesIO(body), **options
            ) as response,
        ):
            await response.read()
            return response.status

    async def settled(self) -> None:
        await self.webhook._queue.join()


async def test_acknowledged_then_acted_on():
    """200, and the breaker opens."""
    async with Served() as served:
        assert await served.post(payload(alert())) == 200
        await served.settled()
        assert served.book.world.state("llama") == "open"
        assert await served.post(b"{") == 400
        assert await served.post(payload(), path="/x") == 404
        assert served.book.world.telemetry.value(catalog.CONTROL_WEBHOOKS_IN, code="200") == 1


def basic(text: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()}


async def test_bearer_and_basic():
    """Either lets in; nothing else does, and a forged webhook moves nothing."""
    async with Served(
        auth={"bearer_tokens": ["right"]}, basic_auth=[{"username": "am", "password": "secret"}]
    ) as served:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic !!"},
            basic("am:wrong"),
            basic("am"),
            {"Authorization": "Digest x"},
        ):
            assert await served.post(payload(alert()), headers=headers) == 401
        await served.settled()
        assert not served.book.world.board.breakers()
        assert await served.post(payload(alert()), headers={"Authorization": "Bearer right"}) == 200
        assert await served.post(payload(alert()), headers=basic("am:secret")) == 200


async def test_mutual_tls(tmp_path):
    """Only who shows a certificate of the authority."""
    authority = trustme.CA()
    mine = authority.issue_cert("localhost")
    theirs = authority.issue_cert("alertmanager")
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    mine.private_key_pem.write_to_path(str(tmp_path / "key"))
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    files = {name: str(tmp_path / name) for name in ("cert", "key", "ca")}
    tls = {"cert_file": files["cert"], "key_file": files["key"], "client_ca_file": files["ca"]}
    async with Served(tls=tls) as served:
        trusting = ssl.create_default_context(cafile=files["ca"])
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await served.post(payload(alert()), scheme="https", ssl=trusting)
        known = ssl.create_default_context(cafile=files["ca"])
        theirs.configure_cert(known)
        assert await served.post(payload(alert()), scheme="https", ssl=known) == 200


async def test_busy_is_503():
    """Which Alertmanager sends again; a 4xx it would drop."""
    async with Served(queue_size=2) as served:
        served.webhook._worker.cancel()
        await asyncio.gather(served.webhook._worker, return_exceptions=True)
        statuses = [await served.post(payload(alert())) for _ in range(4)]
        assert statuses == [200, 200, 503, 503]
        served.webhook._worker = asyncio.create_task(served.webhook._work())


async def test_a_body_too_large_is_413():
    """Before it is read."""
    async with Served(max_request_size=1000) as served:
        assert await served.post(payload(*[alert(pod=str(number)) for number in range(100)])) == 413


async def test_a_flood_leaves_decisions_their_turn():
    """10,000 alerts of 10,000 targets in one webhook: decisions are answered in between."""
    async with Served(routes=[{"target": "{service}"}]) as served:
        flood = payload(*[alert(service=f"s{number}") for number in range(10_000)])
        assert await served.post(flood) == 200
        turns = 0
        waiting = asyncio.create_task(served.settled())
        while not waiting.done():
            assert served.book.world.decider.decide_here("other", "") is not None
            turns += 1
            await asyncio.sleep(0)
        assert turns > 50
        assert len(served.book.world.board.breakers()) == 1000


# Alertmanager's API


async def api(alerts: Any, status: int = 200) -> web.AppRunner:
    async def answer(request: web.Request) -> web.Response:
        assert request.query["active"] == "true"
        assert request.query["silenced"] == "false"
        return web.json_response(alerts, status=status)

    app = web.Application()
    app.router.add_get("/api/v2/alerts", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner


def listed(**labels: str) -> dict[str, Any]:
    found = alert(**labels)
    return {
        "labels": found["labels"],
        "annotations": {},
        "startsAt": START,
        "endsAt": "2099-01-01T00:00:00Z",
        "updatedAt": START,
        "fingerprint": "",
        "receivers": [{"name": "bridge"}],
        "status": {"state": "active", "inhibitedBy": [], "silencedBy": []},
    }


async def test_alerts_are_renewed_from_the_api():
    """With a repeat_interval of hours: asked each third of the lease; what is not listed runs out."""
    alerts = [listed()]
    runner = await api(alerts)
    async with Served(lease="60s", api={"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}) as served:
        world = served.book.world
        served.book.take(alert(), alert(service="silenced"))
        renewal = served.webhook._renewal
        for _ in range(10):
            await world.pass_time(15)
            assert await renewal.look()
        assert world.state("llama") == "open"
        assert world.state("silenced") == "half_open"
    await runner.cleanup()


async def test_what_was_truncated_is_fetched():
    """A webhook that leaves alerts out says how many; the API has them."""
    runner = await api(
        [listed(service="left_out"), {**listed(service="other"), "receivers": [{"name": "x"}]}]
    )
    async with Served(api={"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}) as served:
        assert await served.post(payload(alert(), truncatedAlerts=1)) == 200
        await served.settled()
        assert {breaker.key for breaker in served.book.world.board.breakers()} == {"llama", "left_out"}
        assert served.book.world.telemetry.value(catalog.CONTROL_ALERTS, outcome="truncated") == 1
    await runner.cleanup()


@pytest.mark.parametrize(
    ("answer", "status"), [({"no": "list"}, 200), ([], 500), ([None, {"labels": 1}], 200)]
)
async def test_an_api_that_talks_nonsense(answer, status):
    """Nothing is moved, and the next look is made."""
    runner = await api(answer, status)
    async with Served(api={"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}) as served:
        await served.webhook._renewal.look()
        assert not served.book.world.board.breakers()
    await runner.cleanup()
    assert not await _look_at_nobody()


async def _look_at_nobody() -> bool:
    async with Served(api={"url": "http://127.0.0.1:1"}) as served:
        return await served.webhook._renewal.look()

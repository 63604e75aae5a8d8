"""Alerts pushed: when, what, and what becomes of failures."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
import trustme
from aiohttp import web
from pydantic import ValidationError
from structlog.testing import capture_logs

from otel_bridge import catalog
from otel_bridge.errors import StartError
from otel_bridge.rules.outputs.active import ActiveAlerts
from otel_bridge.rules.outputs.alertmanager import AlertmanagerPush
from otel_bridge.rules.outputs.config import AlertmanagerConfig
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock
from tests.unit.rules.outputs.receiver import START, TRACE, Receiver, firing, until

RETRY = {"initial_interval": "1s", "max_interval": "1s"}


def seconds(text: str) -> float:
    """After START."""
    return datetime.fromisoformat(text).timestamp() - START / 1e9


class Sender:
    """A push on a fake clock."""

    def __init__(self, urls: list[str], **config) -> None:
        self.clock = FakeClock(START)
        self.telemetry = Telemetry()
        self.alerts = ActiveAlerts(self.telemetry, self.clock, limit=1000, shortest=0.0)
        self.push = AlertmanagerPush(
            AlertmanagerConfig(urls=urls, **{"retry": RETRY, **config}),
            self.alerts,
            self.telemetry,
            self.clock,
        )

    async def pass_by(self, amount: float) -> None:
        """Let time pass, and what is due then be sent."""
        await asyncio.sleep(0.05)
        await self.clock.advance(amount)
        await asyncio.sleep(0.05)


@asynccontextmanager
async def sending(*receivers: Receiver, **config):
    sender = Sender([receiver.url for receiver in receivers], **config)
    await sender.push.start()
    try:
        yield sender
    finally:
        await sender.push.stop(5.0)


@pytest.fixture
async def receiver():
    async with Receiver() as made:
        yield made


async def test_an_alert_is_sent_at_once_again_and_that_it_ended(receiver):
    """An end that is far off while it fires, and the true one after resolve_delay."""
    config = {"labels": {"instance": "node-1:9464"}, "trace_url": "https://t/{trace_id}"}
    async with sending(receiver, **config) as sender:
        sender.alerts.take_firing(firing(service_name="a"))
        await until(lambda: receiver.requests)
        method, path, _, [alert] = receiver.requests[0]
        assert (method, path) == ("POST", "/api/v2/alerts")
        assert alert["labels"] == {
            "alertname": "GpuLost",
            "severity": "critical",
            "service_name": "a",
            "instance": "node-1:9464",
        }
        assert alert["annotations"] == {
            "summary": "a GPU is lost",
            "runbook_url": "runbook.md#gpulost",
            "trace_ids": TRACE.hex(),
            "traces": f"https://t/{TRACE.hex()}",
        }
        assert (seconds(alert["startsAt"]), seconds(alert["endsAt"])) == (0, 240)
        await sender.pass_by(59)
        assert len(receiver.requests) == 1
        await sender.pass_by(1)
        assert seconds(receiver.contents[1][0]["endsAt"]) == 300
        sender.alerts.take_firing(firing(active=False, at=60, service_name="a"))
        await sender.pass_by(29)
        assert len(receiver.requests) == 2
        await sender.pass_by(1)
        [[ended]] = receiver.contents[2:]
        assert seconds(ended["endsAt"]) == 60
        await sender.pass_by(600)
        assert len(receiver.requests) == 3
        assert sender.telemetry.value(catalog.ALERTMANAGER_SENT, alertmanager=receiver.url) == 3


async def test_one_that_ended_before_it_was_sent_is_sent_nevertheless(receiver):
    """First that it fires, then that it does not."""
    async with sending(receiver) as sender:
        sender.alerts.take_firing(firing())
        sender.alerts.take_firing(firing(active=False, at=1))
        await until(lambda: receiver.requests)
        await sender.pass_by(31)
        first, last = (content[0] for content in receiver.contents)
        assert seconds(first["endsAt"]) > 200
        assert seconds(last["endsAt"]) == 1


async def test_one_that_begins_anew_before_its_end_was_told_goes_on(receiver):
    """No end is sent."""
    async with sending(receiver) as sender:
        sender.alerts.take_firing(firing())
        await until(lambda: receiver.requests)
        sender.alerts.take_firing(firing(active=False, at=1))
        await sender.pass_by(10)
        sender.alerts.take_firing(firing(at=10))
        await until(lambda: len(receiver.requests) == 2)
        await sender.pass_by(50)
        assert all(seconds(content[0]["endsAt"]) > 200 for content in receiver.contents)


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_failure_is_tried_again(receiver, status):
    """Until it is taken; then nothing is sent twice."""
    receiver.statuses = [status, status]
    async with sending(receiver) as sender:
        with capture_logs() as logs:
            sender.alerts.take_firing(firing())
            await until(lambda: len(receiver.requests) == 3, sender.clock)
            await sender.pass_by(1)
        assert len(receiver.requests) == 3
        count = sender.telemetry.value
        assert count(catalog.ALERTMANAGER_ATTEMPTS, alertmanager=receiver.url, code=str(status)) == 2
        assert count(catalog.ALERTMANAGER_SENT, alertmanager=receiver.url) == 1
        events = [entry["event"] for entry in logs]
        assert events == ["Alertmanager cannot be told of alerts", "Alertmanager takes alerts again"]


async def test_retry_after_is_kept(receiver):
    """Longer than the back-off would be."""
    receiver.statuses, receiver.retry_after = [503], "40"
    async with sending(receiver) as sender:
        sender.alerts.take_firing(firing())
        await sender.pass_by(39)
        assert len(receiver.requests) == 1
        await sender.pass_by(2)
        assert len(receiver.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refusal_is_counted_and_tried_with_the_next_round_only(receiver, status):
    """Sending the same at once would be refused again."""
    receiver.statuses = [status]
    async with sending(receiver) as sender:
        with capture_logs() as logs:
            sender.alerts.take_firing(firing())
            await sender.pass_by(30)
        assert len(receiver.requests) == 1
        assert sender.telemetry.value(catalog.ALERTMANAGER_DROPPED, reason="refused") == 1
        assert logs[0]["error"].startswith(f"answered {status}")
        await sender.pass_by(30)
        assert len(receiver.requests) == 2


async def test_one_that_is_down_holds_the_other_up_by_nothing(receiver):
    """And is told what holds when it is back, not what has passed."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        sender = Sender([down, receiver.url])
        await sender.push.start()
        sender.alerts.take_firing(firing())
        await until(lambda: receiver.requests)
        await until(
            lambda: sender.telemetry.value(
                catalog.ALERTMANAGER_ATTEMPTS, alertmanager=down, code="connection"
            )
        )
        await sender.push.stop(5.0)
        assert len(receiver.requests) == 1


async def test_many_alerts_go_in_pieces(receiver):
    """Of 64, as Prometheus sends them."""
    async with sending(receiver) as sender:
        for number in range(150):
            sender.alerts.take_firing(firing(pod=str(number)))
        await until(lambda: sum(map(len, receiver.contents)) >= 150)
        assert max(map(len, receiver.contents)) <= 64
        assert sum(map(len, receiver.contents)) == 150


async def test_a_stop_tells_what_changed_last(receiver):
    """And does not end alerts that fire."""
    sender = Sender([receiver.url])
    await sender.push.start()
    await asyncio.sleep(0)
    sender.alerts.take_firing(firing())
    await sender.push.stop(5.0)
    [[alert]] = receiver.contents
    assert seconds(alert["endsAt"]) == 240


async def test_credentials_are_shown_and_never_printed(receiver):
    """As a bearer token, or by basic authentication; further headers as they are."""
    config = {"bearer_token": "s3cret", "headers": {"X-Scope-OrgID": "tenant-1"}}
    async with sending(receiver, **config) as sender:
        sender.alerts.take_firing(firing())
        await until(lambda: receiver.requests)
    headers = receiver.requests[0][2]
    assert headers["Authorization"] == "Bearer s3cret"
    assert headers["X-Scope-OrgID"] == "tenant-1"
    config = AlertmanagerConfig(urls=[receiver.url], basic_auth={"username": "u", "password": "s3cret"})
    assert "s3cret" not in repr(config) + config.model_dump_json()


async def test_mutual_tls(tmp_path):
    """Our certificate is asked for, theirs is checked."""
    authority = trustme.CA()
    server, client = authority.issue_cert("127.0.0.1"), authority.issue_cert("bridge")
    ca, pair = tmp_path / "ca.pem", tmp_path / "client.pem"
    authority.cert_pem.write_to_path(ca)
    client.private_key_and_cert_chain_pem.write_to_path(pair)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
    context.verify_mode = ssl.CERT_REQUIRED
    server.configure_cert(context)
    taken = []

    async def take(request: web.BaseRequest) -> web.Response:
        taken.append(request.transport.get_extra_info("peercert"))
        return web.Response()

    runner = web.ServerRunner(web.Server(take))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    tls = {"ca_file": ca, "cert_file": pair, "key_file": pair}
    sender = Sender([f"https://127.0.0.1:{runner.addresses[0][1]}"], tls=tls)
    await sender.push.start()
    sender.alerts.take_firing(firing())
    await until(lambda: taken)
    await sender.push.stop(5.0)
    await runner.cleanup()
    assert taken[0]


async def test_a_file_that_is_no_certificate_stops_the_start(tmp_path):
    """With the setting to change."""
    (tmp_path / "ca.pem").write_text("nothing")
    sender = Sender(["http://127.0.0.1:1"], tls={"ca_file": tmp_path / "ca.pem"})
    with pytest.raises(StartError, match=r"change rules\.alertmanager\.tls\.ca_file"):
        await sender.push.start()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"urls": []}, "at least 1"),
        ({"urls": ["127.0.0.1:9093"]}, "pattern"),
        ({"urls": ["http://a/?x=1"]}, "pattern"),
        ({"urls": ["http://a"], "labels": {"severity": "info"}}, "the rule's to say"),
        ({"urls": ["http://a"], "labels": {"k8s.node": "x"}}, "pattern"),
        ({"urls": ["http://a"], "trace_url": "https://t/"}, "no {trace_id}"),
        ({"urls": ["http://a"], "resolve_delay": "3m"}, "twice resend_interval"),
        ({"urls": ["http://a"], "tls": {"cert_file": "a.pem"}}, "set both or neither"),
        (
            {"urls": ["http://a"], "bearer_token": "x", "basic_auth": {"username": "u", "password": "p"}},
            "set one",
        ),
    ],
)
def test_mistakes_are_named(config, said):
    """Each with what would be right."""
    with pytest.raises(ValidationError, match=said):
        AlertmanagerConfig(**config)

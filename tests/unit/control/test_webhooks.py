"""Webhooks out: signed, in order, tried again, with a circuit on their own receiver."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self

import pytest
from aiohttp import web
from pydantic import ValidationError
from standardwebhooks import Webhook as Verifier
from standardwebhooks import WebhookVerificationError

from otel_bridge import catalog
from otel_bridge.breakers import Change, State
from otel_bridge.control.actions.config import WebhookConfig
from otel_bridge.control.actions.dispatch import Delivery, Dispatcher
from otel_bridge.control.actions.templates import TEMPLATES
from otel_bridge.control.actions.webhook import Webhook
from otel_bridge.telemetry import Telemetry
from otel_bridge.testing import FakeClock

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BEFORE = {State.OPEN: State.CLOSED, State.HALF_OPEN: State.OPEN, State.CLOSED: State.HALF_OPEN}


def change(state: State = State.OPEN, target: str = "llama/8b", number: int = 0) -> Change:
    return Change(
        target=target,
        before=BEFORE[state],
        state=state,
        cause="alert",
        reason="alert X: $(reboot)",
        until=60.0 if state is State.OPEN else 0.0,
        probes=5,
        time=1_700_000_000_000_000_000 + number,
        event=1,
        decided=2,
        evidence=(bytes(range(16)),),
    )


class Receiver:
    """A real HTTP server that keeps what it gets and answers as told."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.retry_after = self.location = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path_qs, dict(request.headers), await request.read()))
        status = self.statuses.pop(0) if self.statuses else 200
        headers = {"Retry-After": self.retry_after, "Location": self.location}
        return web.Response(status=status, headers={name: text for name, text in headers.items() if text})

    @property
    def states(self) -> list[str]:
        return [json.loads(body)["data"]["state"] for *_, body in self.requests]


class Sender:
    """A dispatcher with one webhook, on a fake clock."""

    def __init__(self, url: str, **config: Any) -> None:
        self.clock = FakeClock()
        self.telemetry = Telemetry()
        self.audit: list[tuple[str, ...]] = []
        self.config = WebhookConfig.model_validate({"url": url, "targets": ["*"], "secret": SECRET, **config})
        self.webhook = Webhook("gw", self.config, self.telemetry, self.clock)
        self.dispatcher = Dispatcher(self.clock, self.telemetry, lambda *entry: self.audit.append(entry))
        self.dispatcher.add(
            self.webhook,
            self.config,
            Delivery(self.config.retry, self.config.max_age, self.config.queue_size),
        )

    async def __aenter__(self) -> Self:
        await self.webhook.start()
        await self.dispatcher.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.dispatcher.stop(0.1)
        await self.webhook.stop()

    async def until(self, count: int, seconds: float = 1.0) -> None:
        """Let time pass until so many results are in the audit log."""
        for _ in range(400):
            if len(self.audit) >= count:
                return
            await asyncio.sleep(0.005)
            await self.clock.advance(seconds / 10)
        pytest.fail(f"only {self.audit}")

    @property
    def results(self) -> list[str]:
        return [result for _, _, result, _, _ in self.audit]


async def test_a_message_is_signed_so_that_a_kept_library_believes_it():
    """And neither another body, nor another time, nor another secret."""
    async with Receiver() as receiver, Sender(receiver.url + "/hook") as sender:
        sender.clock.step_wall(__import__("time").time() - sender.clock.time_ns() / 1e9)
        sender.dispatcher.submit(change())
        await sender.until(1)
        (method, path, headers, body) = receiver.requests[0]
        assert (method, path) == ("POST", "/hook")
        found = Verifier(SECRET).verify(body, headers)
        assert found["type"] == "BACKPRESSURE_HIGH"
        assert found["data"]["target"] == "llama/8b"
        assert found["data"]["lease_ms"] == 60_000
        assert found["data"]["traces"] == [bytes(range(16)).hex()]
        lower = {name.lower(): value for name, value in headers.items()}
        forged = [
            (body.replace(b"open", b"shut"), lower),
            (body, {**lower, "webhook-timestamp": str(int(lower["webhook-timestamp"]) - 1)}),
            (body, {**lower, "webhook-id": "msg_other"}),
        ]
        for data, shown in forged:
            with pytest.raises(WebhookVerificationError):
                Verifier(SECRET).verify(data, shown)


async def test_high_and_its_release_in_order():
    """Whatever the receiver does in between."""
    async with Receiver() as receiver, Sender(receiver.url) as sender:
        for number, state in enumerate((State.OPEN, State.HALF_OPEN, State.CLOSED)):
            sender.dispatcher.submit(change(state, number=number))
        await sender.until(3)
        assert receiver.states == ["open", "half_open", "closed"]
        assert sender.results == ["done"] * 3


async def test_tried_again_with_the_same_key():
    """Until it is taken; the signature is of the try."""
    async with Receiver() as receiver, Sender(receiver.url) as sender:
        receiver.statuses = [500, 503, 429]
        sender.dispatcher.submit(change())
        await sender.until(1, seconds=30)
        assert sender.results == ["done"]
        assert len(receiver.requests) == 4
        assert len({headers["Idempotency-Key"] for _, _, headers, _ in receiver.requests}) == 1
        assert sender.telemetry.value(catalog.CONTROL_DELIVERY_TRIES, action="gw", code="503") == 1


async def test_different_changes_have_different_keys():
    """An open and the next open are two."""
    async with Receiver() as receiver, Sender(receiver.url) as sender:
        sender.dispatcher.submit(change(number=1))
        sender.dispatcher.submit(change(number=2))
        await sender.until(2)
        assert len({headers["Idempotency-Key"] for _, _, headers, _ in receiver.requests}) == 2


async def test_a_newer_change_takes_the_place_of_one_that_fails():
    """A release must not wait behind an open that nobody took."""
    async with Receiver() as receiver, Sender(receiver.url) as sender:
        receiver.statuses = [500]
        sender.dispatcher.submit(change(State.OPEN, number=1))
        await asyncio.sleep(0.05)
        sender.dispatcher.submit(change(State.CLOSED, number=2))
        await sender.until(2, seconds=30)
        assert sender.results == ["superseded", "done"]
        assert receiver.states == ["open", "closed"]


async def test_one_target_does_not_wait_for_another():
    """Order is per target."""
    async with Receiver() as receiver, Sender(receiver.url) as sender:
        receiver.statuses = [500]
        sender.dispatcher.submit(change(target="a"))
        await asyncio.sleep(0.05)
        sender.dispatcher.submit(change(target="b", number=2))
        await sender.until(2, seconds=30)
        assert [entry[0] for entry in sender.audit] == ["b", "a"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status):
    """The address is the configuration's; who answers there must not choose another one."""
    async with Receiver() as receiver, Receiver() as other, Sender(receiver.url) as sender:
        receiver.statuses, receiver.location = [status], other.url
        sender.dispatcher.submit(change())
        await sender.until(1)
        assert sender.results == ["failed"]
        assert not other.requests


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_a_refusal_for_good_is_not_repeated(status):
    """It would be the same again."""
    async with Receiver() as receiver, Sender(receiver.url) as sender:
        receiver.statuses = [status]
        sender.dispatcher.submit(change())
        await sender.until(1)
        assert sender.results == ["failed"]
        assert len(receiver.requests) == 1


async def test_a_receiver_that_stays_away_costs_few_tries():
    """Its circuit opens after five failures, then one try each half minute; given up by age, and said."""
    async with Sender(
        "http://127.0.0.1:1/", max_age="10m", retry={"initial_interval": 0.1, "max_interval": 0.1}
    ) as sender:
        sender.dispatcher.submit(change())
        await sender.until(1, seconds=100)
        assert sender.results == ["dropped"]
        tries = sender.telemetry.value(catalog.CONTROL_DELIVERY_TRIES, action="gw", code="connection")
        assert 5 < tries < 30


async def test_a_full_queue_drops_the_oldest():
    """Counted and audited."""
    async with Receiver() as receiver, Sender(receiver.url, queue_size=2) as sender:
        receiver.statuses = [500] * 100
        for number in range(5):
            sender.dispatcher.submit(change(number=number))
        await asyncio.sleep(0.05)
        assert sender.results.count("dropped") == 3


async def test_dry_run_sends_nothing():
    """It is only written down."""
    async with Receiver() as receiver, Sender(receiver.url, dry_run=True) as sender:
        sender.dispatcher.submit(change())
        await sender.until(1)
        assert sender.results == ["dry_run"]
        assert not receiver.requests


async def test_only_allowed_targets():
    """The allow-list is required, and is the configuration's."""
    async with Receiver() as receiver, Sender(receiver.url, targets=["qwen/*"]) as sender:
        sender.dispatcher.submit(change())
        sender.dispatcher.submit(change(target="qwen/7b"))
        await sender.until(1)
        assert [entry[0] for entry in sender.audit] == ["qwen/7b"]


async def test_the_rate_limit_is_on_what_is_stricter():
    """Releases always go."""
    limit = {"changes": 1, "interval": "1h"}
    async with Receiver() as receiver, Sender(receiver.url, rate_limit=limit) as sender:
        sender.dispatcher.submit(change(target="a"))
        sender.dispatcher.submit(change(target="b"))
        sender.dispatcher.submit(change(State.CLOSED, target="b"))
        await sender.until(3)
        assert sorted(sender.results) == ["done", "done", "limited"]


# Templates


def rendered(template: str, state: State, **config: Any):
    found = WebhookConfig.model_validate(
        {"url": "http://127.0.0.1:9901", "targets": ["*"], "template": template, **config}
    )
    return TEMPLATES[template](change(state), found, 60.0)


@pytest.mark.parametrize(("state", "share"), [(State.OPEN, 100), (State.HALF_OPEN, 90), (State.CLOSED, 0)])
def test_envoy(state, share):
    """The share that its fault filter refuses."""
    message = rendered("envoy_ai_gateway", state)
    assert message.method == "POST"
    assert message.url == f"http://127.0.0.1:9901/runtime_modify?fault.http.abort.abort_percent={share}"


@pytest.mark.parametrize(
    ("state", "verb"), [(State.OPEN, "block"), (State.HALF_OPEN, "unblock"), (State.CLOSED, "unblock")]
)
def test_litellm(state, verb):
    """A deployment, out and in."""
    message = rendered("litellm", state, model_id="abc")
    assert message.url == f"http://127.0.0.1:9901/model/{verb}"
    assert json.loads(message.body) == {"model_id": "abc"}


@pytest.mark.parametrize(
    ("state", "enabled"), [(State.OPEN, True), (State.HALF_OPEN, False), (State.CLOSED, False)]
)
def test_kong(state, enabled):
    """A plugin, on and off."""
    message = rendered("kong", state)
    assert (message.method, json.loads(message.body)) == ("PATCH", {"enabled": enabled})


@pytest.mark.parametrize("template", ["envoy_ai_gateway", "litellm", "kong"])
def test_texts_of_alerts_reach_no_gateway(template):
    """They would stand in an address or a setting there."""
    message = rendered(template, State.OPEN, model_id="abc")
    assert "reboot" not in message.url + message.body.decode()


# Configuration


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"url": "http://gateway/"}, "use https"),
        ({"url": "ftp://127.0.0.1/"}, "pattern"),
        ({"targets": []}, "targets"),
        ({"targets": None}, "targets"),
        ({"secret": "short"}, "24"),
        ({"template": "litellm"}, "model_id"),
    ],
)
def test_bad_configuration(config, match):
    """Each named."""
    with pytest.raises(ValidationError, match=match):
        WebhookConfig.model_validate({"url": "http://127.0.0.1/", "targets": ["*"], **config})


def test_secrets_never_print():
    """Neither in a repr nor in a dump."""
    config = WebhookConfig.model_validate(
        {"url": "http://127.0.0.1/", "targets": ["*"], "secret": SECRET, "headers": {"x": "token-value"}}
    )
    assert SECRET not in repr(config) + config.model_dump_json()
    assert "token-value" not in repr(config) + config.model_dump_json()

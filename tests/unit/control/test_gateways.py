"""The decision API as gateways speak it: HTTP in four dialects, and Envoy's gRPC."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
import orjson
import pytest
import trustme
from pydantic import ValidationError

from otel_bridge import catalog
from otel_bridge.control.config import ControlConfig, StrategiesConfig
from otel_bridge.control.grpc_decisions import METHOD, CheckRequest, CheckResponse, GrpcDecisions
from otel_bridge.control.http_decisions import DecisionMetrics, HttpDecisions
from otel_bridge.control.questions import Questions
from otel_bridge.control.strategies import Strategies
from tests.support.control import World
from tests.support.limits import Limited

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {
    "X-Otel-Bridge-Service": "llama",
    "X-Otel-Bridge-Model": "8b",
    "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
}


@asynccontextmanager
async def served(world: World | None = None, strategies: Strategies | None = None, **config: Any):
    """HTTP, and a function that asks."""
    world = world or World(decisions={"http": {"endpoint": "127.0.0.1:0", **config}})
    questions = Questions(world.config.targets)
    server = HttpDecisions(
        world.config.decisions.http,
        world.decider,
        questions,
        lambda interface: DecisionMetrics(world.telemetry, interface),
        strategies,
    )
    await server.start()
    session = aiohttp.ClientSession()
    try:

        async def ask(path: str, method: str = "GET", headers: Any = HEADERS, **options: Any):
            url = f"http://127.0.0.1:{server.port}{path}"
            async with session.request(method, url, headers=headers, **options) as response:
                return response.status, response.headers, await response.read()

        ask.world, ask.server = world, server
        yield ask
    finally:
        await session.close()
        await server.stop(1)


async def test_the_strategy_of_a_trace():
    """By itself, and on every answer that allows; a refused request has none."""
    strategies = Strategies(StrategiesConfig(enabled=True))
    name, bucket = strategies.of(TRACE)
    async with served(strategies=strategies) as ask:
        status, headers, body = await ask(f"/v1/strategy?trace_id={TRACE}", headers={})
        assert (status, headers["X-Otel-Bridge-Strategy"]) == (200, name)
        assert orjson.loads(body) == {"trace_id": TRACE, "strategy": name, "bucket": bucket}
        for path in ("/v1/strategy", "/v1/decision", "/v1/nginx", "/v1/forward-auth", "/v1/ext-authz/x"):
            assert (await ask(path))[1]["X-Otel-Bridge-Strategy"] == name
        for query in ("", "?trace_id=", "?trace_id=xyz", f"?trace_id={'0' * 32}"):
            status, _, body = await ask(f"/v1/strategy{query}", headers={})
            assert status == 400
            assert b"name the trace" in body
        ask.world.calls("llama/8b", *[3.0] * 5)
        assert "X-Otel-Bridge-Strategy" not in (await ask("/v1/decision"))[1]
    async with served() as ask:
        assert (await ask("/v1/strategy"))[0] == 404


async def test_the_strategy_over_ext_authz():
    """A header that Envoy passes on to the service, in place of what a client sent."""
    strategies = Strategies(StrategiesConfig(enabled=True))
    world = World()
    async with envoy(world, strategies) as port:
        answer = await check(port, question())
        found = {option.header.key: option for option in answer.ok_response.headers}
        assert found["X-Otel-Bridge-Strategy"].header.value == strategies.of(TRACE)[0]
        assert found["X-Otel-Bridge-Strategy"].append_action == 2


async def test_plain_json_allows_and_refuses():
    """200 and 429, each with all that there is to say."""
    async with served() as ask:
        status, headers, body = await ask("/v1/decision")
        assert status == 200
        assert b'"allow":true' in body
        ask.world.calls("llama/8b", *[3.0] * 5)
        status, headers, body = await ask("/v1/decision", "POST", json={"service": "llama", "model": "8b"})
        assert status == 429
        assert 60 <= int(headers["Retry-After"]) <= 72
        assert 60_000 <= int(headers["X-Retry-After"]) <= 72_000
        assert b'"target":"llama/8b"' in body
        assert ask.world.telemetry.value(catalog.CONTROL_DECISIONS, interface="json", result="refused") == 1


@pytest.mark.parametrize(
    ("path", "allowed", "refused"),
    [
        ("/v1/nginx", 204, 403),
        ("/v1/forward-auth", 200, 429),
        ("/v1/ext-authz", 200, 429),
        ("/v1/ext-authz/v1/chat/completions?stream=1", 200, 429),
    ],
)
async def test_each_gateway_s_dialect(path, allowed, refused):
    """Nginx knows no 429; all others hand the answer to their client."""
    async with served() as ask:
        assert (await ask(path))[0] == allowed
        ask.world.calls("llama/8b", *[3.0] * 5)
        status, headers, _ = await ask(path)
        assert status == refused
        assert headers["Retry-After"]
        assert headers["X-Retry-After"]
        assert headers["X-Otel-Bridge-State"] == "open"


async def test_a_probe_is_admitted_by_its_trace():
    """And named, so that a gateway may log it."""
    async with served() as ask:
        ask.world.calls("llama/8b", *[3.0] * 5)
        await ask.world.pass_time(60)
        status, headers, _ = await ask("/v1/forward-auth")
        assert status == 200
        assert headers["X-Otel-Bridge-Probe"] == TRACE


async def test_a_fallback_is_answered_as_it_is():
    """With its own status and type."""
    fallback = {"status": 503, "content_type": "text/plain", "body": "try the small one"}
    world = World(
        policies=[{"fallback": "small"}],
        decisions={"http": {"endpoint": "127.0.0.1:0"}, "fallbacks": {"small": fallback}},
    )
    world.calls("llama/8b", *[3.0] * 5)
    async with served(world) as ask:
        status, headers, body = await ask("/v1/forward-auth")
        assert (status, headers["Content-Type"], body) == (503, "text/plain", b"try the small one")


@pytest.mark.parametrize(
    ("path", "method", "options", "status"),
    [
        ("/", "GET", {}, 404),
        ("/v1/decisions", "GET", {}, 404),
        ("/v1/decision", "POST", {"data": b"{"}, 400),
        ("/v1/decision", "POST", {"json": ["x"]}, 400),
        ("/v1/decision", "POST", {"data": b'{"service": "' + b"x" * 5000 + b'"}'}, 413),
    ],
)
async def test_bad_questions(path, method, options, status):
    """Refused with a reason in JSON, never with 5xx."""
    async with served(max_request_size=4096) as ask:
        found, _, body = await ask(path, method, **options)
        assert found == status
        assert b'"error"' in body


async def test_tokens():
    """Where other machines reach it."""
    async with served(auth={"bearer_tokens": ["right"]}) as ask:
        assert (await ask("/v1/nginx"))[0] == 401
        assert (await ask("/v1/nginx", headers={**HEADERS, "Authorization": "Bearer right"}))[0] == 204


@pytest.mark.parametrize(
    "config",
    [
        {"http": {"endpoint": "0.0.0.0:9465"}},
        {"http": {"endpoint": "0.0.0.0:9465", "auth": {"bearer_tokens": ["x"]}}},
        {"http": {"endpoint": "0.0.0.0:9465", "tls": {"cert_file": "c", "key_file": "k"}}},
        {"grpc": {"endpoint": "10.0.0.1:9466"}},
    ],
)
def test_other_machines_need_tls_and_a_token(config):
    """Said when the configuration is read."""
    with pytest.raises(ValidationError, match=r"listen on 127\.0\.0\.1"):
        ControlConfig.model_validate({"decisions": config})
    name = next(iter(config))
    ControlConfig.model_validate({"decisions": {name: {**config[name], "insecure": True}}})


@asynccontextmanager
async def envoy(
    world: World, strategies: Strategies | None = None, limited: Limited | None = None, **config: Any
):
    """ext_authz, and its port."""
    found = ControlConfig.model_validate({"decisions": {"grpc": {"endpoint": "127.0.0.1:0", **config}}})
    questions = limited.questions if limited is not None else Questions(found.targets)
    decider = limited.decider if limited is not None else world.decider
    server = GrpcDecisions(found.decisions.grpc, decider, questions, world.telemetry, strategies)
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop(1)


def question(*, raw: bool = False, **extensions: str) -> bytes:
    request = CheckRequest()
    http = request.attributes.request.http
    for name, value in HEADERS.items():
        if raw:
            http.header_map.headers.add(key=name, raw_value=value.encode())
        else:
            http.headers[name.lower()] = value
    request.attributes.context_extensions.update(extensions)
    return request.SerializeToString()


async def check(port: int, data: bytes, channel: Any = None, metadata: Any = ()) -> Any:
    async with channel or grpc.aio.insecure_channel(f"127.0.0.1:{port}") as to:
        return CheckResponse.FromString(await to.unary_unary(METHOD)(data, metadata=metadata))


@pytest.mark.parametrize("raw", [False, True])
async def test_ext_authz_over_grpc(raw):
    """OK with headers; RESOURCE_EXHAUSTED with a 429 for the client; both ways that Envoy sends headers."""
    world = World()
    async with envoy(world) as port:
        answer = await check(port, question(raw=raw))
        assert answer.status.code == 0
        assert answer.ok_response.headers[0].header.value == "closed"
        world.calls("llama/8b", *[3.0] * 5)
        answer = await check(port, question(raw=raw))
        assert answer.status.code == 8
        assert answer.denied_response.status.code == 429
        headers = {option.header.key: option.header.value for option in answer.denied_response.headers}
        assert headers["Retry-After"] == headers["Retry-After"].strip()
        assert headers["X-Retry-After"]
        assert "circuit_breaker" in answer.denied_response.body


async def test_a_route_of_envoy_names_the_target():
    """context_extensions go before what a client sent."""
    world = World()
    world.calls("qwen/7b", *[3.0] * 5)
    async with envoy(world) as port:
        assert (await check(port, question())).status.code == 0
        assert (await check(port, question(service="qwen", model="7b"))).status.code == 8


async def test_envoy_tells_the_size_for_limits():
    """From the body where Envoy sends it, from its size where it does not."""
    rules = {"tokens": {"by": [], "unit": "tokens", "amount": 100, "per": "10h"}}
    body = b'{"max_tokens": 40, "prompt": "' + b"\xff" * 9 + b'"}'
    for fields, passed in (
        ({"body": b'{"max_tokens": 40}'}, 2),
        ({"raw_body": body, "size": 200}, 1),
        ({"size": 200}, 1),
    ):
        bridge = Limited(rules, limits={"estimate": {"max_tokens": 0 if "body" in fields else 20}})
        request = CheckRequest.FromString(question())
        for name, value in fields.items():
            setattr(request.attributes.request.http, name, value)
        async with envoy(bridge.world, limited=bridge) as port:
            answers = [await check(port, request.SerializeToString()) for _ in range(3)]
        assert [answer.status.code for answer in answers].count(0) == passed
        headers = {option.header.key: option.header.value for option in answers[-1].denied_response.headers}
        assert headers["X-Otel-Bridge-Limit"] == "tokens"
        assert answers[-1].denied_response.status.code == 429


async def test_bytes_that_are_no_check_request():
    """INVALID_ARGUMENT, and the server goes on."""
    async with envoy(World()) as port:
        for data in (b"\xff\xff", b"\x0a\xff"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await check(port, data)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await check(port, b"")).status.code == 0


async def test_ext_authz_with_tls_and_a_token(tmp_path):
    """As for OTLP."""
    authority = trustme.CA()
    mine = authority.issue_cert("localhost")
    mine.private_key_pem.write_to_path(str(tmp_path / "key"))
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    tls = {"cert_file": str(tmp_path / "cert"), "key_file": str(tmp_path / "key")}
    async with envoy(World(), tls=tls, auth={"bearer_tokens": ["right"]}) as port:
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())

        def channel() -> grpc.aio.Channel:
            return grpc.aio.secure_channel(f"localhost:{port}", credentials)

        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(port, question(), channel())
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        answer = await check(port, question(), channel(), [("authorization", "Bearer right")])
        assert answer.status.code == 0


async def test_https(tmp_path):
    """The HTTP dialects over TLS."""
    authority = trustme.CA()
    mine = authority.issue_cert("localhost")
    mine.private_key_pem.write_to_path(str(tmp_path / "key"))
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    tls = {"cert_file": str(tmp_path / "cert"), "key_file": str(tmp_path / "key")}
    async with served(tls=tls) as ask, aiohttp.ClientSession() as session:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca"))
        url = f"https://localhost:{ask.server.port}/v1/nginx"
        async with session.get(url, headers=HEADERS, ssl=trusting) as response:
            assert response.status == 204

"""The decision API over HTTP: plain JSON, Envoy's ext_authz, nginx's auth_request, forwardAuth."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol, TypeAlias

import orjson
from aiohttp import web

from otel_bridge import catalog
from otel_bridge.control.direct import Answer
from otel_bridge.control.serving import Listener
from otel_bridge.control.strategies import HEADER as STRATEGY_HEADER
from otel_bridge.errors import BridgeError
from otel_bridge.listeners.answers import problem, refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from prometheus_client import Counter

    from otel_bridge.control.config import HttpDecisionsConfig
    from otel_bridge.control.decider import Decider
    from otel_bridge.control.decision import Decision
    from otel_bridge.control.questions import Questions
    from otel_bridge.control.strategies import Strategies
    from otel_bridge.telemetry import Telemetry

SETTING = "control.decisions.http"
RESULTS = ("allowed", "probe", "refused", "limited")
JSON = "application/json"
STRATEGY_PATH = "/v1/strategy"
_BODY_READ = frozenset({"POST", "PUT"})


class DecisionMetrics:
    """Counts answers of one interface."""

    def __init__(self, telemetry: Telemetry, interface: str) -> None:
        counter = telemetry.counter(catalog.CONTROL_DECISIONS)
        self._results: dict[str, Counter] = {result: counter.labels(interface, result) for result in RESULTS}
        self._duration = telemetry.histogram(catalog.CONTROL_DECISION_DURATION)

    def answered(self, decision: Decision, since: float) -> None:
        """Count one; `since` is `time.perf_counter()` when its request was read."""
        self._results[decision.result].inc()
        self._duration.observe(time.perf_counter() - since)


class Counts(Protocol):
    """What counts the answers of one interface."""

    def answered(self, decision: Decision, since: float) -> None:
        """Count one; `since` is `time.perf_counter()` when its request was read."""


Route: TypeAlias = "tuple[Callable[[Decision], Answer], Counts]"


class HttpDecisions:
    """Serves the decision API; README.md shows each gateway's configuration."""

    def __init__(
        self,
        config: HttpDecisionsConfig,
        decider: Decider,
        questions: Questions,
        metrics: Callable[[str], Counts],
        strategies: Strategies | None = None,
        *,
        path: Path | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            config: where and how.
            decider: decides.
            questions: reads what is asked.
            metrics: makes what counts the answers of one interface.
            strategies: told beside decisions; None: there are none.
            path: a Unix socket to serve at instead.
        """
        self._strategies = strategies
        self._decider = decider
        self._questions = questions
        self._listener = Listener(
            config.endpoint, config, SETTING, self._handle, self._answer_directly, path=path
        )
        self._routes: dict[str, Route] = {
            found: (render, metrics(interface))
            for found, interface, render in (
                ("/v1/decision", "json", as_json),
                ("/v1/nginx", "nginx", as_nginx),
                ("/v1/forward-auth", "forward_auth", as_response),
                ("/v1/ext-authz", "ext_authz_http", as_response),
            )
        }

    @property
    def port(self) -> int:
        """The port that is served."""
        return self._listener.port

    async def start(self) -> None:
        """Listen; raises StartError."""
        await self._listener.start()

    async def stop(self, deadline: float) -> None:
        """Stop listening."""
        await self._listener.stop(deadline)

    def _answer_directly(self, raw_path: str, headers: dict[str, str]) -> Answer | None:
        """The answer to a question that came whole; None where `_handle` must see to it."""
        since = time.perf_counter()
        path, _, query = raw_path.partition("?")
        found = self._route(path, query)
        if found is None:
            return None
        route, query = found
        try:
            if self._listener.auth is not None:
                self._listener.auth.check(headers.get("authorization"))
            key, trace, claim = self._questions.ask(headers, query)
        except BridgeError:
            return None
        decision = self._decider.decide_here(key, trace, claim)
        return None if decision is None else self._answer(route, decision, trace, since)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        since = time.perf_counter()
        path, _, query = request.raw_path.partition("?")
        if path == STRATEGY_PATH and self._strategies is not None:
            return self._strategy(request, query, self._strategies)
        found = self._route(path, query)
        if found is None:
            known = ", ".join(self._routes)
            return problem(404, f"nothing is served at {path[:100]}; there are {known}")
        route, query = found
        listener = self._listener
        try:
            if listener.auth is not None:
                listener.auth.check(request.headers.get("Authorization"))
            body = b""
            if path == "/v1/decision" and request.method in _BODY_READ and request.can_read_body:
                body = await listener.read(request)
            key, trace, claim = self._questions.ask(request.headers, query, body)
        except BridgeError as error:
            return refused(error)
        decision = await self._decider.decide(key, trace, claim)
        answer = self._answer(route, decision, trace, since)
        return web.Response(status=answer.status, body=answer.body or None, headers=answer.headers)

    def _route(self, path: str, query: str) -> tuple[Route, str] | None:
        """How a path is answered, and the query that counts."""
        route = self._routes.get(path)
        if route is not None:
            return route, query
        # Envoy puts the path of the request that it asks about behind its prefix.
        return (self._routes["/v1/ext-authz"], "") if path.startswith("/v1/ext-authz/") else None

    def _answer(self, route: Route, decision: Decision, trace: str, since: float) -> Answer:
        render, metrics = route
        answer = render(decision)
        if self._strategies is not None and decision.allow:
            answer.headers[STRATEGY_HEADER], _ = self._strategies.of(trace)
        metrics.answered(decision, since)
        return answer

    def _strategy(self, request: web.BaseRequest, query: str, strategies: Strategies) -> web.Response:
        """The strategy of one trace, for whoever asks about nothing else."""
        try:
            if self._listener.auth is not None:
                self._listener.auth.check(request.headers.get("Authorization"))
            _, trace = self._questions.read(request.headers, query)
        except BridgeError as error:
            return refused(error)
        if not trace:
            return problem(400, "name the trace: ?trace_id=<32 hex digits>, or the header traceparent")
        name, bucket = strategies.of(trace)
        body = orjson.dumps({"trace_id": trace, "strategy": name, "bucket": bucket})
        return web.Response(body=body, content_type=JSON, headers={STRATEGY_HEADER: name})


def as_json(decision: Decision) -> Answer:
    """200 or 429 with all that there is to say, for whoever reads JSON."""
    document = {
        "allow": decision.allow,
        "target": decision.target,
        "state": decision.state.value,
        "reason": decision.reason,
        "retry_after_ms": round(decision.retry_after * 1000),
        "probe": decision.probe,
        "degraded": decision.degraded,
        "limit": decision.limit,
    }
    fallback = decision.fallback
    if fallback is not None:
        document["fallback"] = {
            "status": fallback.status,
            "content_type": fallback.content_type,
            "body": fallback.body,
        }
    status = HTTPStatus.OK if decision.allow else HTTPStatus.TOO_MANY_REQUESTS
    return Answer(status.value, {**decision.headers(), "Content-Type": JSON}, orjson.dumps(document))


def as_nginx(decision: Decision) -> Answer:
    """204 or 403: auth_request knows no other refusal; nginx makes the 429 of it."""
    status = HTTPStatus.NO_CONTENT if decision.allow else HTTPStatus.FORBIDDEN
    return Answer(status.value, decision.headers())


def as_response(decision: Decision) -> Answer:
    """200, or what the gateway hands to its client as it is: 429, or the fallback."""
    if decision.allow:
        return Answer(HTTPStatus.OK.value, decision.headers())
    status, content_type, body = refusal(decision)
    return Answer(status, {**decision.headers(), "Content-Type": content_type}, body)


def refusal(decision: Decision) -> tuple[int, str, bytes]:
    """Status, content type and body of the response that stands for a refused request."""
    if decision.fallback is not None:
        fallback = decision.fallback
        return fallback.status, fallback.content_type, fallback.body.encode()
    kind, message = "circuit_breaker", f"{decision.target} takes no requests now ({decision.state.value})"
    if decision.limit:
        kind, message = "rate_limit", decision.reason
    document = {
        "error": {"type": kind, "message": message, "retry_after_ms": round(decision.retry_after * 1000)}
    }
    return HTTPStatus.TOO_MANY_REQUESTS.value, JSON, orjson.dumps(document)

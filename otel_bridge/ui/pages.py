"""The pages, over HTTP: server-rendered, without scripts, without anything from elsewhere."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiohttp import web

from otel_bridge import __version__
from otel_bridge.errors import UnauthenticatedError
from otel_bridge.ui import traces
from otel_bridge.ui.health import Health
from otel_bridge.ui.recent import RecentTraces
from otel_bridge.ui.shown import LONGEST_NAME, clean, duration
from otel_bridge.ui.visitors import ForbiddenError, admit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import jinja2

    from otel_bridge.batch import PlanBuilder
    from otel_bridge.contracts import Clock, TraceProcessor
    from otel_bridge.listeners.auth import BearerAuth
    from otel_bridge.states import BreakerState, RuleState
    from otel_bridge.telemetry import Telemetry
    from otel_bridge.ui.config import UiConfig

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LISTED = 50
"""Traces of the list: each is decoded to be listed."""
MOST_ROWS = 200
"""Breakers, and rules, that are listed."""
REFRESH = (5, 10, 30)
"""Seconds that a visitor may choose from."""
_TRACE_ID = re.compile(r"[0-9a-fA-F]{32}")
_LONGEST_REASON = 200
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_STATIC = {"style.css": "text/css", "icon.svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Sources:
    """Whom the pages ask.

    Attributes:
        not_ready: why the service is not ready, or None.
        breakers: all of them, those that refuse first.
        rules: those that the bridge evaluates itself.
    """

    not_ready: Callable[[], str | None]
    breakers: Callable[[], Sequence[BreakerState]]
    rules: Callable[[], Sequence[RuleState]]


class Ui:
    """Keeps recent traces and shows them, with the states of everything else."""

    def __init__(self, config: UiConfig, telemetry: Telemetry, clock: Clock, sources: Sources) -> None:
        self.recent = RecentTraces(config, telemetry, clock)
        self._clock = clock
        self._sources = sources
        self._health = Health(telemetry.registry)
        self._rendering = asyncio.Lock()
        self._auth: BearerAuth | None = None

    def tap(self, columns: PlanBuilder) -> TraceProcessor:
        """The step of the data path that keeps some traces."""
        return self.recent.tap(columns)

    def routes(self, auth: BearerAuth | None) -> list[web.RouteDef]:
        """What a server adds to serve the pages; with `auth` to those who show a token."""
        self._auth = auth
        return [
            web.get("/", self._for_visitors(self._home)),
            web.get("/ui", self._for_visitors(self._overview)),
            web.get("/ui/", self._for_visitors(self._home)),
            web.get("/ui/trace", self._for_visitors(self._look_up)),
            web.get("/ui/trace/{id}", self._for_visitors(self._trace)),
            web.get("/ui/static/{name}", self._for_visitors(self._static)),
        ]

    def _for_visitors(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                admit(request, self._auth)
                response = await handler(request)
            except UnauthenticatedError as error:
                response = _page(401, "message.html", title="Who are you?", message=str(error))
                response.headers["WWW-Authenticate"] = 'Basic realm="otel_bridge", charset="UTF-8"'
            except ForbiddenError as error:
                response = _page(403, "message.html", title="Not from there", message=str(error))
            response.headers.update(_HEADERS)
            return response

        return answer

    async def _home(self, _request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/ui"})

    async def _static(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _STATIC:
            return _page(404, "message.html", title="Nothing here", message="There is no such file.")
        return web.Response(text=_static_text(name), content_type=_STATIC[name])

    async def _look_up(self, request: web.Request) -> web.Response:
        """From the form, which can only ask with a query."""
        trace_id = request.query.get("id", "").strip().lower()
        if not _TRACE_ID.fullmatch(trace_id):
            return _no_trace_id()
        return web.Response(status=303, headers={"Location": f"/ui/trace/{trace_id}"})

    async def _overview(self, request: web.Request) -> web.Response:
        refresh = _refresh(request)
        asked: dict[str, Any] = {
            "marked": request.query.get("only") == "marked",
            "service": request.query.get("service", ""),
            "refresh": refresh,
            "rules": self._sources.rules(),
            "breakers": self._sources.breakers(),
            "not_ready": self._sources.not_ready(),
        }
        async with self._rendering:  # one at a time: the data path has the same interpreter
            response = await asyncio.to_thread(self._overview_page, **asked)
        if refresh:
            response.headers["Refresh"] = str(refresh)
        return response

    def _overview_page(
        self,
        *,
        marked: bool,
        service: str,
        refresh: int,
        rules: Sequence[RuleState],
        breakers: Sequence[BreakerState],
        not_ready: str | None,
    ) -> web.Response:
        rules = sorted(rules, key=lambda rule: (not rule.active, not rule.pending, rule.name))
        return _page(
            200,
            "overview.html",
            title="Now",
            now=self._clock.time_ns(),
            not_ready=not_ready,
            version=__version__,
            accepted=self._health.accepted(),
            traces=self._listed(marked=marked, service=service),
            marked=marked,
            service=clean(service, LONGEST_NAME),
            breakers=breakers[:MOST_ROWS],
            more_breakers=max(0, len(breakers) - MOST_ROWS),
            rules=rules[:MOST_ROWS],
            more_rules=max(0, len(rules) - MOST_ROWS),
            firing=sum(len(rule.active) for rule in rules),
            rules_of_prometheus=self._health.rules_of_prometheus(),
            probes=self._health.probes(),
            destinations=self._health.destinations(),
            refresh=refresh,
            refresh_choices=REFRESH,
        )

    def _listed(self, *, marked: bool, service: str) -> list[traces.Summary]:
        found = (traces.summary(kept) for kept in self.recent.newest(marked_only=marked))
        wanted = (one for one in found if one and (not service or service in one.services))
        return list(islice(wanted, LISTED))

    async def _trace(self, request: web.Request) -> web.Response:
        trace_id = request.match_info["id"]
        if not _TRACE_ID.fullmatch(trace_id):
            return _no_trace_id()
        kept = self.recent.find(bytes.fromhex(trace_id))
        async with self._rendering:
            found = await asyncio.to_thread(traces.trace, kept) if kept is not None else None
            if found is None:
                return _page(404, "unknown.html", title="Not kept", trace_id=trace_id.lower())
            return await asyncio.to_thread(
                _page, 200, "trace.html", title=found.summary.name, trace=found, now=self._clock.time_ns()
            )


def _refresh(request: web.Request) -> int:
    asked = request.query.get("refresh", "")
    return int(asked) if asked in map(str, REFRESH) else 0


def _no_trace_id() -> web.Response:
    message = "A trace id is 32 hexadecimal digits."
    return _page(400, "message.html", title="Not a trace id", message=message)


def _page(status: int, template: str, /, **values: Any) -> web.Response:
    text = _environment().get_template(template).render(values)
    return web.Response(status=status, text=text, content_type="text/html", charset="utf-8")


@cache
def _static_text(name: str) -> str:
    return resources.files("otel_bridge.ui").joinpath("static", name).read_text("utf-8")


@cache
def _environment() -> jinja2.Environment:
    """The templates; every value is escaped."""
    # Only who looks pays for it.
    import jinja2  # noqa: PLC0415

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("otel_bridge.ui"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., Any]] = {
        "duration": duration,
        "seconds": lambda value: duration(round(value * 1e9)),
        "clock": lambda ns: datetime.fromtimestamp(ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3],
        "iso": lambda ns: datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        "hex": bytes.hex,
        "reason": lambda text: clean(text, _LONGEST_REASON),
    }
    environment.filters.update(filters)
    return environment

"""The pages, over HTTP: server-rendered, without scripts, without anything from elsewhere."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aiohttp import web

from otel_bridge import __version__
from otel_bridge.errors import UnauthenticatedError
from otel_bridge.ui import attention, runbook, traces
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
SLOWEST = 5
"""Traces that stand before the list, once there are more than these."""
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


@dataclass(frozen=True, slots=True)
class View:
    """What a visitor of the first page asked for.

    Attributes:
        marked: failed or kernel-hit traces only.
        service: only traces with spans of it; empty: of any.
        pod: likewise.
        slowest: the slowest first, not the newest.
        refresh: seconds; 0: never.
    """

    marked: bool = False
    service: str = ""
    pod: str = ""
    slowest: bool = False
    refresh: int = 0

    @classmethod
    def of(cls, query: Mapping[str, str]) -> View:
        """Of the address; what is not understood is left out."""
        refresh = query.get("refresh", "")
        return cls(
            marked=query.get("only") == "marked",
            service=query.get("service", ""),
            pod=query.get("pod", ""),
            slowest=query.get("order") == "slowest",
            refresh=int(refresh) if refresh in map(str, REFRESH) else 0,
        )

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return not (self.marked or self.service or self.pod)

    def but(self, **changes: Any) -> str:
        """The address of the same page with something else asked for."""
        view = replace(self, **changes)
        asked = {
            "only": "marked" if view.marked else "",
            "service": view.service,
            "pod": view.pod,
            "order": "slowest" if view.slowest else "",
            "refresh": view.refresh or "",
        }
        query = urlencode({key: value for key, value in asked.items() if value})
        return f"/ui?{query}" if query else "/ui"

    def shows(self, found: traces.Summary) -> bool:
        """Whether a trace is to be listed."""
        of_service = not self.service or self.service in found.services
        return of_service and (not self.pod or self.pod in found.pods)


class Ui:
    """Keeps recent traces and shows them, with the states of everything else."""

    def __init__(self, config: UiConfig, telemetry: Telemetry, clock: Clock, sources: Sources) -> None:
        self.recent = RecentTraces(config, telemetry, clock)
        self._clock = clock
        self._sources = sources
        self._health = Health(telemetry)
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
            web.get("/ui/runbook", self._for_visitors(self._runbook)),
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

    async def _runbook(self, _request: web.Request) -> web.Response:
        return _page(200, "runbook.html", title="Runbook", entries=runbook.entries().values())

    async def _look_up(self, request: web.Request) -> web.Response:
        """From the form, which can only ask with a query."""
        trace_id = request.query.get("id", "").strip().lower()
        if not _TRACE_ID.fullmatch(trace_id):
            return _no_trace_id()
        return web.Response(status=303, headers={"Location": f"/ui/trace/{trace_id}"})

    async def _overview(self, request: web.Request) -> web.Response:
        view = View.of(request.query)
        asked: dict[str, Any] = {
            "view": view,
            "rules": self._sources.rules(),
            "breakers": self._sources.breakers(),
            "not_ready": self._sources.not_ready(),
        }
        async with self._rendering:  # one at a time: the data path has the same interpreter
            response = await asyncio.to_thread(self._overview_page, **asked)
        if view.refresh:
            response.headers["Refresh"] = str(view.refresh)
        return response

    def _overview_page(
        self,
        *,
        view: View,
        rules: Sequence[RuleState],
        breakers: Sequence[BreakerState],
        not_ready: str | None,
    ) -> web.Response:
        rules = sorted(rules, key=lambda rule: (not rule.active, not rule.pending, rule.name))
        now, destinations, probes = self._clock.time_ns(), self._health.destinations(), self._health.probes()
        concerns = attention.concerns(
            not_ready=not_ready,
            rules=rules,
            breakers=breakers,
            destinations=destinations,
            probes=probes,
            now=now,
        )
        return _page(
            200,
            "overview.html",
            title="Now",
            now=now,
            concerns=concerns[: attention.MOST],
            more_concerns=max(0, len(concerns) - attention.MOST),
            not_ready=not_ready,
            version=__version__,
            accepted=self._health.accepted(),
            slowest=self._slowest() if view.whole and not view.slowest else [],
            traces=self._listed(view),
            view=view,
            of=" in ".join(clean(name, LONGEST_NAME) for name in (view.service, view.pod) if name),
            breakers=breakers[:MOST_ROWS],
            more_breakers=max(0, len(breakers) - MOST_ROWS),
            rules=rules[:MOST_ROWS],
            more_rules=max(0, len(rules) - MOST_ROWS),
            runbook=runbook.entries(),
            rules_of_prometheus=self._health.rules_of_prometheus(),
            probes=probes,
            destinations=destinations,
            refresh_choices=REFRESH,
        )

    def _listed(self, view: View) -> list[traces.Summary]:
        ordered = self.recent.slowest if view.slowest else self.recent.newest
        found = (traces.summary(kept) for kept in ordered(marked_only=view.marked))
        return list(islice((one for one in found if one and view.shows(one)), LISTED))

    def _slowest(self) -> list[traces.Summary]:
        """Those that are worth a table of their own: with few traces the list tells as much."""
        first = self.recent.slowest(SLOWEST + 1)
        found = [traces.summary(kept) for kept in first[:SLOWEST]] if len(first) > SLOWEST else []
        return [one for one in found if one]

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
        "until": lambda ns, now: duration(max(0, now - ns)),
        "seconds": lambda value: duration(round(value * 1e9)),
        "clock": lambda ns: datetime.fromtimestamp(ns / 1e9, UTC).strftime("%H:%M:%S.%f")[:-3],
        "iso": lambda ns: datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds"),
        "hex": bytes.hex,
        "reason": lambda text: clean(text, _LONGEST_REASON),
    }
    environment.filters.update(filters)
    return environment

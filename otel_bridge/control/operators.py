"""What operators may say to a running bridge, over a Unix socket or a loopback port: JSON over HTTP."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from otel_bridge.control import machine
from otel_bridge.control.machine import Mode
from otel_bridge.errors import StartError, UnauthenticatedError
from otel_bridge.listeners.address import cannot_listen
from otel_bridge.listeners.answers import problem, refused
from otel_bridge.listeners.auth import BearerAuth
from otel_bridge.targets import parse_key
from otel_bridge.units import Duration

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from otel_bridge.control.audit import Entry
    from otel_bridge.control.board import Board
    from otel_bridge.control.breaker import Breaker
    from otel_bridge.control.config import OperatorsConfig
    from otel_bridge.control.limits.limiter import Limiter

    History = Callable[[str | None, int], Awaitable[list[Entry]]]

log = structlog.get_logger(__name__)

SETTING = "control.operators"
_SOCKET_PATH_LIMIT = 107
_MOST_ENTRIES = 10_000
_PEER = struct.Struct("3i")


class Order(BaseModel):
    """What an operator wants done to one breaker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = Field(max_length=1000)
    action: Literal["open", "close", "disable", "observe", "auto"]
    reason: str = Field(min_length=1, max_length=1000)
    name: str = Field(min_length=1, max_length=100)
    seconds: Annotated[Duration, Field(gt=0, le=30 * 86400)] | None = None


class Operators:
    """Serves operators' commands.

    Args:
        config: where.
        board: the breakers.
        history: reads the audit log.
        limiter: the rate limits; None: there are none.
    """

    def __init__(
        self, config: OperatorsConfig, board: Board, history: History, limiter: Limiter | None = None
    ) -> None:
        self._limiter = limiter
        self._config = config
        self._board = board
        self._history = history
        self._auth: BearerAuth | None = None
        self._runner: web.AppRunner | None = None
        self._socket: Path | None = None
        self.port: int | None = None

    async def start(self) -> None:
        """Listen.

        Raises:
            StartError: the socket or the port is taken, or cannot be made.
        """
        config = self._config
        self._auth = BearerAuth(config.auth, f"{SETTING}.auth") if config.auth else None
        app = web.Application(middlewares=[self._admit], client_max_size=64 << 10)
        app.add_routes(
            [
                web.get("/v1/breakers", self._list),
                web.get("/v1/breaker", self._show),
                web.post("/v1/breaker", self._order),
                web.get("/v1/history", self._past),
                web.get("/v1/limits", self._limits),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        try:
            if config.socket is not None:
                await self._serve_socket(config.socket)
            if config.endpoint is not None:
                site = web.TCPSite(self._runner, config.endpoint.host, config.endpoint.port)
                try:
                    await site.start()
                except OSError as error:
                    raise cannot_listen(config.endpoint, f"{SETTING}.endpoint", error) from error
                self.port = self._runner.addresses[-1][1]
        except BaseException:
            await self.stop(0.0)
            raise

    async def stop(self, _deadline: float) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._socket is not None:
            with suppress(FileNotFoundError):
                self._socket.unlink()
            self._socket = None

    async def _serve_socket(self, path: Path) -> None:
        assert self._runner is not None
        if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
            raise StartError(
                f"cannot listen on {path}: a socket's path has at most {_SOCKET_PATH_LIMIT} bytes; set "
                f"{SETTING}.socket to a shorter one"
            )
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _clear(path)
            # The mode is the permission to command, so there must be no moment with another one.
            before = os.umask(0o177)
            try:
                listening.bind(str(path))
            finally:
                os.umask(before)
            await web.SockSite(self._runner, listening).start()
        except OSError as error:
            listening.close()
            raise StartError(
                f"cannot listen on {path}: {error.strerror or error}; set {SETTING}.socket to a path that "
                "this user may write, or to null"
            ) from error
        self._socket = path

    @web.middleware
    async def _admit(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            if _peer(request) is None:
                assert self._auth is not None
                self._auth.check(request.headers.get("Authorization"))
            return await handler(request)
        except UnauthenticatedError as error:
            return refused(error)
        except (ValidationError, ValueError) as error:
            return problem(400, _plain(error))

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {"breakers": [self._describe(breaker) for breaker in self._board.breakers()]}
        )

    async def _show(self, request: web.Request) -> web.Response:
        key = parse_key(request.query.get("target", ""))
        breaker = self._board.find(key)
        if breaker is None:
            return problem(404, f"there is no breaker {key!r}")
        return web.json_response({**self._describe(breaker), "holds": self._holds(breaker)})

    async def _order(self, request: web.Request) -> web.Response:
        order = Order.model_validate_json(await request.read())
        key = parse_key(order.target)
        uid = _peer(request)
        actor = order.name if uid is None else f"{order.name} ({_user(uid)})"
        with self._board.lock:
            breaker = self._board.obtain(key)
            if breaker is None:
                raise ValueError(
                    f"{key!r} may have no breaker: control.targets.allowed or max_targets stands against it"
                )
            self._obey(order, breaker, actor)
        log.warning("an operator spoke", target=key, action=order.action, actor=actor, reason=order.reason)
        return web.json_response(self._describe(breaker))

    def _obey(self, order: Order, breaker: Breaker, actor: str) -> None:
        lease = self._config.forced_open_lease
        if order.action == "open" and order.seconds is not None:
            step = breaker.step(machine.open_for, order.seconds, order.reason)
        elif order.action == "open":
            step = breaker.step(machine.force_open, lease, order.reason)
        elif order.action == "close":
            step = breaker.step(machine.close, order.reason)
        elif order.action == "disable":
            step = breaker.step(machine.disable, order.reason)
        else:
            mode = Mode.OBSERVE if order.action == "observe" else Mode.AUTO
            step = breaker.step(machine.decide_by_itself, mode, order.reason)
        self._board.operate(breaker, step, actor, order.reason)

    async def _limits(self, request: web.Request) -> web.Response:
        most = _limit_of(request)
        nothing = {"degraded": False, "shared": False, "open_reservations": 0, "limits": []}
        return web.json_response(self._limiter.describe(most) if self._limiter is not None else nothing)

    async def _past(self, request: web.Request) -> web.Response:
        target = request.query.get("target")
        limit = _limit_of(request)
        entries = await self._history(parse_key(target) if target else None, limit)
        return web.json_response({"entries": [entry.as_dict() for entry in entries]})

    def _describe(self, breaker: Breaker) -> dict[str, Any]:
        record = breaker.record
        now = self._board.clock.monotonic()
        return {
            "target": breaker.key,
            "state": record.state.value,
            "mode": record.mode.value,
            "traffic": breaker.traffic(record).value,
            "for_seconds": round(max(0.0, now - record.since), 3),
            "ends_in_seconds": round(max(0.0, record.until - now), 3) if record.until else None,
            "cause": record.cause.value,
            "reason": record.reason,
            "alerts": len(record.holds),
            "probes": {"under_way": len(record.permits), "passed": record.passed, "lost": record.lost},
            "degraded": self._board.replicas is not None and self._board.replicas.cut_off,
        }

    def _holds(self, breaker: Breaker) -> list[dict[str, Any]]:
        now = self._board.clock.monotonic()
        return [
            {
                "alert": key,
                "cause": hold.cause.value,
                "ends_in_seconds": round(hold.until - now, 3),
                "muted": hold.muted,
            }
            for key, hold in breaker.record.holds.items()
        ]


def _limit_of(request: web.Request) -> int:
    limit = int(request.query.get("limit", "100"))
    if not 0 < limit <= _MOST_ENTRIES:
        raise ValueError(f"limit is 1 to {_MOST_ENTRIES}")
    return limit


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on any more.

    Raises:
        OSError: somebody does, or it is no socket.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(17, "a file that is no socket stands there", str(path))
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(98, "another bridge listens there", str(path))


def _peer(request: web.Request) -> int | None:
    """Which user is at the other end of a Unix socket; None: it is no such socket."""
    transport = request.transport
    connection = transport.get_extra_info("socket") if transport is not None else None
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    uid: int = _PEER.unpack(raw)[1]
    return uid


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _plain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, found['loc']))}: {found['msg']}"
            for found in error.errors(include_input=False)
        )
    return str(error)

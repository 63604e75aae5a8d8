"""Asks the engine for more than it bears until its breaker opens, then leaves it alone until that closes."""

from __future__ import annotations

import http.client
import json
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demo.errors import DemoError
from demo.trip import control

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo.stack import Stack
    from demo.trip.control import Answer

CLIENTS = 64
"""Each asks again as soon as it is answered; the engine has four slots."""
TOKENS = 64
USUAL = 3
GO_ON = 0.3
"""Seconds for which clients go on asking once they are refused."""
PAUSE = 0.05
TIMEOUT = 60.0
OK = 200


@dataclass
class Story:
    """What came of it; times are unix nanoseconds.

    Attributes:
        usual: seconds that a request takes when nobody else asks.
        began: the overload did.
        took: seconds of each answered request of the overload.
        broken: requests that were under way and got no whole answer.
        refused: when each refused connection was.
        answer: the decision API's refusal.
        asked: when.
        ended: the overload did.
        back: the first answer to a client that had asked first.
        history: the audit log's entries, as `breaker history` has them.
    """

    usual: float = 0.0
    began: int = 0
    took: list[float] = field(default_factory=list)
    broken: int = 0
    refused: list[int] = field(default_factory=list)
    answer: Answer | None = None
    asked: int = 0
    ended: int = 0
    back: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)

    def changes(self, state: str) -> list[dict[str, Any]]:
        """The breaker's own changes to a state."""
        return [entry for entry in self.history if entry["event"] == "transition" and entry["after"] == state]


def run(stack: Stack, tell: Callable[[str, str], None]) -> Story:
    """One trip and the way back; `tell` hears of each step.

    Raises:
        DemoError: the breaker did not open, or not close.
    """
    at = stack.addresses
    story = Story()
    control.order(at, "auto", "its part of the demo begins")
    usual = sorted(_request(at.engine)[1] for _ in range(USUAL))
    story.usual = usual[len(usual) // 2]
    tell("a request, nobody else asking", f"{story.usual * 1e3:.0f} ms")
    clients = _Clients(at.engine, story)
    with clients:
        story.answer = _until(stack, "opens", lambda: _refusal(stack))
        story.asked = time.time_ns()
        time.sleep(GO_ON)
    tell(f"{CLIENTS} clients at once, until the breaker opened", f"{len(story.took)} answers")
    _until(stack, "lets a request through", lambda: _pass(stack, story))
    tell("left alone, until a request was let through", "")
    _until(stack, "closes", lambda: _pass(stack, story) and _closed(stack))
    story.history = [entry for entry in control.history(at) if entry["time"] >= story.began]
    tell("and until enough of them had been answered in time", "")
    return story


class _Clients:
    """The overload, for as long as the block lasts."""

    def __init__(self, port: int, story: Story) -> None:
        self._port = port
        self._story = story
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)

    def __enter__(self) -> None:
        self._story.began = time.time_ns()
        self._running = [self._pool.submit(self._one) for _ in range(CLIENTS)]

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._story.ended = time.time_ns()
        self._pool.shutdown()
        for client in self._running:
            client.result()

    def _one(self) -> None:
        while not self._stop.is_set():
            try:
                status, seconds = _request(self._port)
            except ConnectionRefusedError:
                self._story.refused.append(time.time_ns())
                time.sleep(PAUSE)
                continue
            except (OSError, http.client.HTTPException):
                status = 0
            if status == OK:
                self._story.took.append(seconds)
            else:
                self._story.broken += 1


def _request(port: int, trace: str = "") -> tuple[int, float]:
    """One chat over a connection of its own; its status and how long it took."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "How much do you bear?"}],
        "max_tokens": TOKENS,
    }
    headers = {
        "Content-Type": "application/json",
        "baggage": "user_agent.synthetic.type=test",
        "traceparent": f"00-{trace or secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        began = time.monotonic()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, time.monotonic() - began
    finally:
        connection.close()


def _refusal(stack: Stack) -> Answer | None:
    answer = control.decide(stack.addresses, secrets.token_hex(16))
    return None if answer.allow else answer


def _pass(stack: Stack, story: Story) -> bool:
    """Do as a gateway does: ask, and only then hand on."""
    trace = secrets.token_hex(16)
    if not control.decide(stack.addresses, trace).allow:
        return False
    status, _ = _request(stack.addresses.engine, trace)
    if status == OK and not story.back:
        story.back = time.time_ns()
    return status == OK


def _closed(stack: Stack) -> bool:
    last = [entry for entry in control.history(stack.addresses) if entry["event"] == "transition"][-1]
    return bool(last["after"] == "closed")


def _until(stack: Stack, what: str, happened: Callable[[], Any]) -> Any:
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        stack.check()
        if found := happened():
            return found
        time.sleep(PAUSE)
    raise DemoError(
        f"within {TIMEOUT:g} s the breaker of {control.TARGET} did not come so far that it {what}",
        "look at the bridge's log; a machine under load may need another try",
        stack.run / "bridge.log",
    )

"""What measures: knocks at the kernel's gate and at the gateway, a patient client, a webhook's receiver."""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import secrets
import socket
import struct
import sys
import time

from aiohttp import web
from standardwebhooks import Webhook

from tests.bench.breaker.children import say
from tests.bench.scheduling import INSTRUMENT, go_first

KNOCK_PAUSE = 200e-6
"""Seconds between two knocks at the kernel's gate; it is in the figure."""
GATEWAY_PAUSE = 500e-6
STEADY_PAUSE = 0.05
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: end with a reset, so that nothing is left in TIME_WAIT, or ports run out."""


def knock(port: int, listener: socket.socket | None = None) -> tuple[bool, int, int]:
    """One connection: whether it was refused, and when it began and ended."""
    began = time.monotonic_ns()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        try:
            client.connect(("127.0.0.1", port))
        except ConnectionRefusedError:
            return True, began, time.monotonic_ns()
        ended = time.monotonic_ns()
        if listener is not None:
            listener.accept()[0].close()
        return False, began, ended


def kernel(port: int, bare: int) -> None:
    """Knock at a port that the engine's gate guards as well, so that the engine has no work with it.

    First, at a port without a listener: what a refusal takes where nobody decides.
    """
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        for _ in range(bare):
            refused, began, ended = knock(holder.getsockname()[1])
            assert refused
            say(bare=ended - began)
            time.sleep(KNOCK_PAUSE)
    before: bool | None = None
    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            refused, _, ended = knock(port, listener)
            if refused != before:
                before = refused
                say(kernel="refused" if refused else "admitted", at=ended)
            time.sleep(KNOCK_PAUSE)


def gateway(port: int) -> None:
    """For each line of the input: ask nginx, again and again, until it refuses.

    Afterwards nothing, since while half-open each question would take a probe's permit.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in sys.stdin:
        status = 200
        while status != http.client.TOO_MANY_REQUESTS:
            time.sleep(GATEWAY_PAUSE)
            connection.request("GET", "/knock")
            with connection.getresponse() as answer:
                answer.read()
                status = answer.status
        say(gateway="refused", at=time.monotonic_ns())


def steady(port: int, body: str) -> None:
    """A client that asks now and then, whatever it is answered; it finds out when the service is back."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {
            "Content-Type": "application/json",
            "traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
        }
        began = time.monotonic_ns()
        connection.request("POST", "/v1/chat/completions", body, headers)
        with connection.getresponse() as answer:
            answer.read()
            say(steady=answer.status, began=began, at=time.monotonic_ns())
        connection.close()
        time.sleep(STEADY_PAUSE)


async def receiver(port: int, secret: str) -> None:
    """Takes webhooks; one that is not signed as Standard Webhooks says ends the bench."""

    async def take(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        at = time.monotonic_ns()
        message = Webhook(secret).verify(body, dict(request.headers))
        say(webhook=message["type"], at=at)
        return web.Response(status=204)

    await asyncio.get_running_loop().create_server(web.Server(take, access_log=None), "127.0.0.1", port)
    say(receiver=True)
    await asyncio.Event().wait()


def main() -> None:
    """Be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=("kernel", "gateway", "steady", "receiver"))
    parser.add_argument("port", type=int)
    parser.add_argument("--bare", type=int, default=0)
    parser.add_argument("--body", default="")
    parser.add_argument("--secret", default="")
    options = parser.parse_args()
    # The finest clock goes before the others: a webhook being taken would else be in its figure.
    go_first(INSTRUMENT + (options.which == "kernel"))
    if options.which == "kernel":
        kernel(options.port, options.bare)
    elif options.which == "gateway":
        gateway(options.port)
    elif options.which == "steady":
        steady(options.port, json.loads(options.body))
    else:
        asyncio.run(receiver(options.port, options.secret))


if __name__ == "__main__":
    main()

"""The bridge of the bench: the whole service, with a gate that says when each change was decided."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from otel_bridge.control.actions.limits import ActionConfig, RateLimitConfig
from otel_bridge.memory import prepare_to_serve
from otel_bridge.service import Service
from otel_bridge.settings import load
from otel_bridge.telemetry import configure_logging
from tests.bench.breaker.children import say

if TYPE_CHECKING:
    from otel_bridge.breakers import Change


class Recorder:
    """A gate that says what was decided."""

    name = "recorder"

    def apply(self, change: Change) -> None:
        """Say it."""
        if not change.renewal:
            say(
                change=change.state.value,
                event=change.event,
                decided=change.decided,
                cause=change.cause,
                reason=change.reason,
            )


async def main(file: Path) -> None:
    """Serve until killed."""
    configure_logging(level="warning")
    prepare_to_serve()  # as the command line does
    service = Service(load(file))
    await service.start()
    assert service.control is not None
    service.control.add_gate(
        Recorder(), ActionConfig(targets=("*",), rate_limit=RateLimitConfig(changes=1_000_000))
    )
    say(ready=True)
    await asyncio.to_thread(sys.stdin.read)
    await service.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(json.loads(sys.argv[1]))))

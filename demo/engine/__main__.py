"""Run the engine: `python -m demo.engine --port 8000 --otlp http://127.0.0.1:4317`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from pathlib import Path

from aiohttp import web

from demo.engine import model_file
from demo.engine.engine import Engine
from demo.engine.server import OpenAIServer
from demo.engine.tracing import Shape, Tracing

log = logging.getLogger("demo.engine")


def arguments() -> argparse.Namespace:
    """What can be said on the command line."""
    parser = argparse.ArgumentParser(prog="python -m demo.engine", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one; the log says which")
    parser.add_argument(
        "--models", type=Path, default=Path(".demo"), help="where the model file is, or is written"
    )
    parser.add_argument("--otlp", required=True, help="OTLP/gRPC URL that spans are sent to")
    parser.add_argument(
        "--spans", type=Shape, default=Shape.BOTH, help="vllm: llm_request; http: the HTTP server's; both"
    )
    return parser.parse_args()


async def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT, then send the last spans."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    tracing = Tracing(options.spans, options.otlp)
    model = model_file.ensure(options.models)
    engine = Engine(model, model_file.NAME)
    runner = web.AppRunner(OpenAIServer(engine, tracing).app())
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()
    log.info("serving %s on http://%s:%d/v1", model, *runner.addresses[0][:2])
    await stopping.wait()
    await runner.cleanup()
    await asyncio.to_thread(tracing.close)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(serve(arguments()))

"""The decision API behind real gateways: nginx, Caddy, and Envoy's own messages."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from otel_bridge.testing import trace_request
from tests.support.ports import free_port
from tests.support.processes import ROOT, Process, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

ENVOY_MESSAGES = Path(sys.prefix) / "envoy-protos"
TRACE = "0af7651916cd43dd8448eb211c80319c"


class Backend:
    """The protected service."""

    def __init__(self) -> None:
        self.requests = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests += 1
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Bridge:
    """`otel-bridge run` with control on."""

    def __init__(self, directory: Path, **control: Any) -> None:
        self.decisions, self.grpc, self.otlp, self.metrics = (free_port() for _ in range(4))
        self.config = directory / "bridge.yaml"
        self.config.write_text(
            yaml.safe_dump(
                {
                    "receivers": {
                        "otlp": {
                            "protocols": {
                                "grpc": {"enabled": False},
                                "http": {"endpoint": f"127.0.0.1:{self.otlp}"},
                            }
                        }
                    },
                    "exporters": {"otlp": {"endpoint": "127.0.0.1:1"}},
                    "storage": {"directory": str(directory / "queue")},
                    "kernel": {"mode": "off"},
                    "service": {
                        "telemetry": {"metrics": {"endpoint": f"127.0.0.1:{self.metrics}"}},
                        "drain_timeout": 1,
                    },
                    "control": {
                        "enabled": True,
                        "decisions": {
                            "http": {"endpoint": f"127.0.0.1:{self.decisions}"},
                            "grpc": {"enabled": True, "endpoint": f"127.0.0.1:{self.grpc}"},
                        },
                        "operators": {"socket": str(directory / "s")},
                        "state": {"file": str(directory / "control.sqlite")},
                        "policies": [{"open_time": "2s"}],
                        **control,
                    },
                }
            )
        )
        self.process = Process(
            [str(Path(sys.prefix) / "bin" / "otel-bridge"), "run", "-c", str(self.config)],
            directory / "bridge.log",
        )
        self.process.wait_for_http(f"http://127.0.0.1:{self.metrics}/readyz")

    def say(self, *words: str, about: str = "breaker") -> str:
        command = [str(Path(sys.prefix) / "bin" / "otel-bridge"), about, "-c", str(self.config), *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def spans(self, seconds: float, traces: list[str], **attributes: Any) -> None:
        """Send spans of the service."""
        now = time.time_ns()
        data = trace_request(
            [
                {
                    "trace_id": bytes.fromhex(trace),
                    "start_time_unix_nano": now - int(seconds * 1e9),
                    "end_time_unix_nano": now,
                    "attributes": {"gen_ai.request.model": "8b", **attributes},
                }
                for trace in traces
            ],
            resource={"service.name": "llama"},
        )
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.otlp}/v1/traces",
            data,
            {"Content-Type": "application/x-protobuf"},
        )
        urllib.request.urlopen(request, timeout=60).close()


@pytest.fixture
def bridge(tmp_path) -> Iterator[Bridge]:
    found = Bridge(tmp_path)
    yield found
    found.process.stop()


def get(url: str, **headers: str) -> tuple[int, Any, str]:
    shown = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=shown), timeout=60) as response:
            return response.status, response.headers, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def nginx(directory: Path, bridge: Bridge, backend: Backend) -> tuple[Process, int]:
    port = free_port()
    config = directory / "nginx.conf"
    shipped = (ROOT / "otel_bridge/control/gateways/nginx.conf").read_text()
    config.write_text(
        f"""
        daemon off; master_process off; pid {directory}/nginx.pid; error_log stderr warn;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path {directory}; proxy_temp_path {directory};
            fastcgi_temp_path {directory}; uwsgi_temp_path {directory}; scgi_temp_path {directory};
            upstream otel_bridge {{ server 127.0.0.1:{bridge.decisions}; keepalive 16; }}
            upstream llama {{ server 127.0.0.1:{backend.port}; }}
            server {{ listen 127.0.0.1:{port}; {shipped} }}
        }}
        """
    )
    return Process(["nginx", "-c", str(config), "-p", str(directory)], directory / "nginx.log"), port


def caddy(directory: Path, bridge: Bridge, backend: Backend) -> tuple[Process, int]:
    port = free_port()
    config = directory / "Caddyfile"
    shipped = (ROOT / "otel_bridge/control/gateways/Caddyfile").read_text()
    config.write_text(
        f"{{\n admin off\n auto_https off\n}}\nhttp://127.0.0.1:{port} {{\n{shipped}\n}}\n".replace(
            "127.0.0.1:9465", f"127.0.0.1:{bridge.decisions}"
        ).replace("llama:8000", f"127.0.0.1:{backend.port}")
    )
    command = ["caddy", "run", "--config", str(config), "--adapter", "caddyfile"]
    env = {**os.environ, "XDG_DATA_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    return Process(command, directory / "caddy.log", env), port


@pytest.mark.parametrize("gateway", [nginx, caddy], ids=["nginx", "caddy"])
def test_a_gateway_refuses_while_open_and_comes_back_by_probes(tmp_path, bridge, gateway):
    """With the shipped configuration: 200, 429 with both headers, five probes, 200."""
    if shutil.which(gateway.__name__, path=os.environ["PATH"] + ":/usr/sbin") is None:
        pytest.skip(f"no {gateway.__name__}: apt-get install {gateway.__name__}")
    backend = Backend()
    process, port = gateway(tmp_path, bridge, backend)
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    try:
        eventually("the gateway answers", lambda: _answers(url))
        before = backend.requests
        model = {"X_Otel_Bridge_Model": "8b"}
        assert get(url, **model)[0] == 200
        assert backend.requests == before + 1

        bridge.spans(3.0, [f"{number:032x}" for number in range(1, 6)])
        status, headers, _ = get(url, X_Otel_Bridge_Service="harmless", **model)
        assert status == 429, "and a client cannot choose another breaker"
        assert 1 <= int(headers["Retry-After"]) <= 4
        assert 0 < int(headers["X-Retry-After"]) <= 4000
        assert backend.requests == before + 1

        eventually("the open time ended", lambda: _state(bridge) == "half_open")
        answers = [
            get(url, traceparent=f"00-{number:032x}-b7ad6b7169203331-01", **model)[0]
            for number in range(100, 120)
        ]
        assert answers.count(200) == 5
        assert answers.count(429) == 15
        bridge.spans(0.05, [f"{number:032x}" for number in range(100, 105)])
        assert get(url, **model)[0] == 200
        causes = [entry["cause"] for entry in json.loads(bridge.say("history", "--json"))["entries"]]
        assert causes == ["probes_passed", "open_time_ended", "slow_calls"]
    finally:
        process.stop()


@pytest.mark.parametrize("gateway", [nginx, caddy], ids=["nginx", "caddy"])
def test_a_gateway_holds_to_limits(tmp_path, gateway):
    """With the shipped configuration: each key its own requests, 429 with both headers beyond."""
    if shutil.which(gateway.__name__, path=os.environ["PATH"] + ":/usr/sbin") is None:
        pytest.skip(f"no {gateway.__name__}: apt-get install {gateway.__name__}")
    rules = {
        "keys": {"by": ["api_key"], "amount": 3, "per": "1h", "nameless": "skip"},
        "users": {"by": ["user"], "amount": 5, "per": "1h"},
    }
    bridge = Bridge(tmp_path, limits={"rules": rules, "headers": {"api_key": "authorization"}})
    backend = Backend()
    process, port = gateway(tmp_path, bridge, backend)
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    try:
        eventually("the gateway answers", lambda: _answers(url))  # takes one of the nameless user's
        answers = [get(url, Authorization="Bearer sk-1") for _ in range(4)]
        assert [status for status, _, _ in answers] == [200, 200, 200, 429]
        headers = answers[-1][1]
        assert 1000 < int(headers["Retry-After"]) < 2000
        assert int(headers["X-Retry-After"]) <= int(headers["Retry-After"]) * 1000
        # The fifth of those without a user; a client's own word for who it is does not count.
        assert get(url, Authorization="Bearer sk-2", X_Otel_Bridge_User="alice")[0] == 200
        assert get(url, Authorization="Bearer sk-2", X_Otel_Bridge_User="bob")[0] == 429
        found = json.loads(bridge.say("list", "--json", about="limits"))
        assert [(limit["name"], limit["buckets"]) for limit in found["limits"]] == [("keys", 2), ("users", 1)]
        assert "sk-1" not in json.dumps(found)
    finally:
        process.stop()
        bridge.process.stop()


def test_tokens_are_settled_by_the_service_s_span(tmp_path):
    """Asked over HTTP, told by OTLP: what was not used comes back."""
    tokens = {"by": ["model"], "unit": "tokens", "amount": 1000, "per": "10h"}
    bridge = Bridge(tmp_path, limits={"rules": {"tokens": tokens}})

    def ask(number: int, most: int) -> int:
        query = f"service=llama&model=8b&trace_id={number:032x}&prompt_len=400&max_tokens={most}"
        return get(f"http://127.0.0.1:{bridge.decisions}/v1/decision?{query}")[0]

    try:
        assert ask(1, 800) == 200
        assert ask(2, 800) == 429
        usage = {"gen_ai.usage.input_tokens": 90, "gen_ai.usage.output_tokens": 10}
        bridge.spans(0.1, [f"{1:032x}"], **usage)
        assert ask(2, 800) == 200
        metrics = get(f"http://127.0.0.1:{bridge.metrics}/metrics")[2]
        assert 'otel_bridge_control_limit_tokens_total{kind="returned",limit="tokens"} 800.0' in metrics
    finally:
        bridge.process.stop()


def _state(bridge: Bridge) -> str:
    """Of the only breaker."""
    (found,) = json.loads(bridge.say("list", "--json"))["breakers"]
    return found["state"]


def _on_disk(file: Path) -> set[str]:
    """The breakers that a restart would find."""
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as db:
        return {target for (target,) in db.execute("SELECT target FROM breakers")}


def _answers(url: str) -> bool:
    try:
        return get(url)[0] == 200
    except OSError:
        return False


@pytest.mark.skipif(
    not ENVOY_MESSAGES.exists(), reason="Envoy's messages are not there: tools/setup installs them"
)
def test_envoy_s_own_messages(bridge):
    """What Envoy publishes is what is spoken: allowed, then denied with all that its client needs."""
    allowed = envoy(bridge)
    assert (allowed["code"], allowed["which"]) == (0, "ok_response")
    assert allowed["headers"] == {"X-Otel-Bridge-State": "closed"}
    bridge.say("open", "llama", "--for", "1m", "--reason", "drill")
    denied = envoy(bridge)
    assert (denied["code"], denied["which"], denied["status"]) == (8, "denied_response", 429)
    assert denied["headers"]["Content-Type"] == "application/json"
    assert int(denied["headers"]["Retry-After"]) >= 55
    assert int(denied["headers"]["X-Retry-After"]) >= 55_000
    assert denied["append_actions"] == [2]
    assert json.loads(denied["body"])["error"]["type"] == "circuit_breaker"


def envoy(bridge: Bridge) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/support/envoy_client.py"), str(bridge.grpc), "llama", "8b"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ENVOY_MESSAGES)},
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_kill_9_and_back(tmp_path):
    """What an operator ordered is in force again at once after the restart."""
    first = Bridge(tmp_path)
    first.say("disable", "llama/8b", "--reason", "drill", "--name", "alice")
    first.say("open", "qwen", "--reason", "drill")
    # Written behind: nobody waits for the disk.
    eventually("both are on disk", lambda: _on_disk(tmp_path / "control.sqlite") == {"llama/8b", "qwen"})
    first.process.stop(9)
    second = Bridge(tmp_path)
    try:
        found = {
            breaker["target"]: breaker["mode"]
            for breaker in json.loads(second.say("list", "--json"))["breakers"]
        }
        assert found == {"llama/8b": "disabled", "qwen": "forced_open"}
        entries = json.loads(second.say("history", "llama/8b", "--json"))["entries"]
        assert entries[-1]["actor"].startswith("alice")
    finally:
        second.process.stop()

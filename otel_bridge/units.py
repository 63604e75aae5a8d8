"""Quantities as people write them in a configuration: durations, sizes, network endpoints."""

from __future__ import annotations

import ipaddress
import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

_DURATION_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_SIZE_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_duration(value: Any) -> float:
    """Seconds, from a number of seconds or from Go's notation ("1m30s", "200ms").

    Raises:
        ValueError: anything else, or a negative or infinite duration.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif (
        isinstance(value, str)
        and (parts := _DURATION_PART.findall(value))
        and _joined(parts) == value.strip()
    ):
        seconds = sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)
    elif value == "0":
        seconds = 0.0
    else:
        raise ValueError('a duration is seconds (5, 0.2) or a text like "5s", "200ms", "1m30s"')
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError("a duration is finite and not negative")
    return seconds


def _joined(parts: list[tuple[str, str]]) -> str:
    return "".join(number + unit for number, unit in parts)


def parse_byte_size(value: Any) -> int:
    """Bytes, from a number or from a text like "64MiB", "1.5GiB", "500kB".

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        number, prefix, binary = match.groups()
        base = 1024 if binary else 1000
        return int(float(number) * float(base) ** _SIZE_POWERS[prefix.upper()])
    raise ValueError('a size is bytes (65536) or a text like "64MiB", "500kB"')


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A network address to listen on or to connect to.

    Attributes:
        host: a name or an address, without brackets.
        port: 0 lets the system choose (listening only).
    """

    host: str
    port: int

    def __str__(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine is reached by it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_endpoint(value: Any) -> Endpoint:
    """An endpoint from "host:port" or "[v6]:port".

    Raises:
        ValueError: anything else; a URL is told apart, since it is the usual mistake.
    """
    if isinstance(value, Endpoint):
        return value
    if isinstance(value, str):
        if "://" in value:
            raise ValueError('an endpoint here is "host:port", without a scheme')
        host, _, port = value.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError('an IPv6 address stands in brackets: "[::1]:4317"')
        if host and port.isascii() and port.isdigit() and int(port) < 65536:  # noqa: PLR2004 (the ports there are)
            return Endpoint(host, int(port))
    raise ValueError('an endpoint is "host:port", the port 0 to 65535')


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}),
]
"""Seconds."""

ByteSize = Annotated[
    int,
    BeforeValidator(parse_byte_size),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]}),
]
"""Bytes."""

EndpointText = Annotated[
    Endpoint,
    BeforeValidator(parse_endpoint),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["127.0.0.1:4317"]}),
]
"""An `Endpoint`, written "host:port"."""

Port = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port; 0 lets the system choose."""

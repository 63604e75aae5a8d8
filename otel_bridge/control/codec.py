"""Records as JSON, with the clocks they were written by: for the file and for Redis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from otel_bridge.breakers import State
from otel_bridge.control.machine import Cause, Hold, Mode, Record


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the clocks showed at one moment.

    Attributes:
        boot: which boot of the machine `monotonic` counts from.
        monotonic: seconds; the same for all processes of one boot.
        wall: unix seconds.
    """

    boot: str
    monotonic: float
    wall: float


def dump(record: Record) -> dict[str, Any]:
    """A record as JSON takes it; times stay on their clock."""
    return {
        "state": record.state.value,
        "mode": record.mode.value,
        "since": record.since,
        "base_until": record.base_until,
        "holds": {
            key: [hold.until, hold.applied, hold.cause.value, hold.muted]
            for key, hold in record.holds.items()
        },
        "permits": dict(record.permits),
        "passed": record.passed,
        "lost": record.lost,
        "judged": record.judged,
        "cause": record.cause.value,
        "reason": record.reason,
    }


def load(data: dict[str, Any]) -> Record:
    """The record again.

    Raises:
        ValueError: it is none; nothing of it can be trusted.
    """
    try:
        return Record(
            state=State(data["state"]),
            mode=Mode(data["mode"]),
            since=float(data["since"]),
            base_until=float(data["base_until"]),
            holds={
                str(key): Hold(float(until), int(applied), Cause(cause), bool(muted))
                for key, (until, applied, cause, muted) in data["holds"].items()
            },
            permits={str(trace): float(until) for trace, until in data["permits"].items()},
            passed=int(data["passed"]),
            lost=int(data["lost"]),
            judged=bool(data["judged"]),
            cause=Cause(data["cause"]),
            reason=str(data["reason"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a breaker's record: {type(error).__name__}: {error}") from error


def dump_bytes(record: Record, clocks: Clocks) -> bytes:
    """A record with its clocks, for a file."""
    clock = {"boot": clocks.boot, "monotonic": clocks.monotonic, "wall": clocks.wall}
    return orjson.dumps({"clocks": clock, "record": dump(record)})


def load_bytes(data: bytes, clocks: Clocks) -> tuple[Record, bool]:
    """A record from a file, moved to the clocks as they are now.

    Within one boot the monotonic clock goes on, whatever was done to the wall clock. After another boot only
    the wall clock is left; the caller bounds what it may have spoilt (`Record.bounded`).

    Returns:
        The record, and whether its times are exact.

    Raises:
        ValueError: it is none.
    """
    try:
        document = orjson.loads(data)
        was = Clocks(**document["clocks"])
        record = load(document["record"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a breaker's record: {error}") from error
    if was.boot == clocks.boot and was.monotonic <= clocks.monotonic:
        return record, True
    away = max(0.0, clocks.wall - was.wall)
    return record.shifted(clocks.monotonic - away - was.monotonic), False

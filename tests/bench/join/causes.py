"""What a request is asked to cause in the kernel, and what it says it caused."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What happens to a request."""

    RETRANSMIT = "retransmit"  # segments to an upstream are lost
    HANDSHAKE = "handshake"  # with a TLS peer that takes its time
    SLEEP = "sleep"  # its thread waits, longer than the threshold
    HOG = "hog"  # its thread is kept from the CPU by others
    READ = "read"  # from a disk, past the page cache
    RECLAIM = "reclaim"  # page cache in a cgroup that has no room for it
    NOTHING = "nothing"  # save what any request does


LONG_WAIT = 0.08
"""Seconds that a sleep takes: well over what makes a wait long by default."""


BLOCK = 4096
DISK_FILE = 64 * BLOCK
"""Bytes of the file that is read from the disk."""

SPARSE_FILE = 2 << 30
"""Bytes of the file that is read through the page cache, and has none on the disk."""


@dataclass(frozen=True)
class Job:
    """One request's work.

    Attributes:
        kind: of it.
        times: how often it does what it does.
        size: bytes each time, where there are any.
        offset: where in the file, for RECLAIM.
        seconds: how long it sleeps, or how much CPU it uses, each time.
    """

    kind: Kind
    times: int = 1
    size: int = 0
    offset: int = 0
    seconds: float = 0.0


@dataclass
class Caused:
    """What a request did, by its own account and by that of the kernel's interfaces (not of any probe).

    Attributes:
        kind: of it.
        span_id: that was active while it did it, hex.
        tid: the thread, where one alone did it.
        moments: (begin, end) in unix nanoseconds, of what kept its thread from anything else.
        count: events.
        amount: bytes read, or nanoseconds waited for a CPU while it was at work.
        most: nanoseconds waited for a CPU from before its span began until after it ended.
        ports: local ones of the connections it used.
    """

    kind: Kind
    span_id: str = ""
    tid: int = 0
    moments: list[tuple[int, int]] = field(default_factory=list)
    count: int = 0
    amount: int = 0
    most: int = 0
    ports: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For the answer to the client."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Caused:
        """From the server's answer."""
        return cls(
            **document
            | {"kind": Kind(document["kind"]), "moments": [tuple(moment) for moment in document["moments"]]}
        )

"""Names of targets: what a breaker guards, as one key of up to four parts.

A key is "service/model/version/tenant", from the general to the particular. Parts at its end that nobody
named are left out, others stand as "-". A breaker governs every key that begins with its own: "llama" also
stops "llama/8b". Parts come from spans, requests and alerts, so they are data: quoted, and bounded in
length.
"""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FIELDS = ("service", "model", "version", "tenant")
NAMELESS = "-"
MOST_BYTES = 96
"""Of one part; a longer one is cut, and told apart by a hash."""


def part(text: str) -> str:
    """One part of a key: letters, digits and "_.-~:@+" as they are, all else percent-encoded."""
    quoted = quote(text, safe=":@+", errors="replace")
    if quoted == NAMELESS:
        return "%2D"
    if len(quoted) > MOST_BYTES:
        mark = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()
        return f"{quoted[: MOST_BYTES - len(mark) - 1].rstrip('%')}~{mark}"
    return quoted


def key_of(parts: Iterable[str]) -> str:
    """The key of some parts, from the general to the particular; empty when none has a text."""
    found = [part(text) if text else NAMELESS for text in parts]
    while found and found[-1] == NAMELESS:
        found.pop()
    return "/".join(found)


def parse_key(text: str) -> str:
    """A key as an operator or a rule wrote it, brought into its one spelling.

    Raises:
        ValueError: it is empty, or has more parts than there are fields.
    """
    parts = text.split("/")
    if not text.strip("/") or len(parts) > len(FIELDS):
        raise ValueError(
            f"a target is up to {len(FIELDS)} names with / between: {'/'.join(FIELDS)}; found {text!r}"
        )
    # A part may be given back as it was shown, so it is unquoted before it is quoted.
    return key_of("" if name == NAMELESS else unquote(name, errors="replace") for name in parts)


def levels(key: str) -> list[str]:
    """The keys that govern a key, the most general first; itself last."""
    parts = key.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def matches(key: str, patterns: Sequence[str]) -> bool:
    """Whether one of some shell-style patterns covers the whole key; * also covers "/"."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)

"""Values cut to a number of bytes: at a whole character, and JSON at a place where it can be closed."""

from __future__ import annotations

import re

import orjson

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:\\\Z)?("?)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_INSIDE_STRING = re.compile(
    rb"""[^"\\]*
    (?:(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}  # a surrogate pair is one character
         |\\u(?![dD][89abAB])[0-9a-fA-F]{4}
         |\\["\\/bfnrt])
       [^"\\]*)*""",
    re.VERBOSE,
)
_CLOSER = {b"{": b"}", b"[": b"]"}


def truncated(text: bytes, limit: int) -> bytes:
    """At most `limit` bytes of a UTF-8 text, ending with a whole character.

    What was JSON is JSON again: a string is cut short, then it and everything around it is closed;
    members that do not fit are left out. JSON nested so deep that closing it would not fit is cut as
    any text is.
    """
    if len(text) <= limit:
        return text
    if text.lstrip()[:1] in (b"{", b"[", b'"'):
        closed = _closed(text, limit)
        if closed is not None and _is_json(closed):
            return closed
    return text[: _whole(text, limit)]


def _whole(text: bytes, end: int) -> int:
    """The last position up to `end` that does not tear a character."""
    while end and text[end] & 0xC0 == 0x80:  # noqa: PLR2004 (a continuation byte in UTF-8)
        end -= 1
    return end


class _Cut:
    """A beginning of JSON and the last place where it can be closed within the limit."""

    def __init__(self, text: bytes, limit: int) -> None:
        self.text = text
        self.limit = limit
        self.open: list[bytes] = []  # the closers of what is open, outermost first
        self.at: int | None = None  # where the text can end, followed by the closers

    def complete(self) -> bool:
        """Whether a whole JSON value has been read."""
        return self.at is not None and not self.open

    def push(self, token: bytes, end: int) -> bool:
        """Enter an array or object; False when closing it would no longer fit."""
        self.open.append(_CLOSER[token])
        if self._safe(end):
            return True
        self.open.pop()
        return False

    def pop(self, end: int) -> None:
        """Leave an array or object."""
        if self.open:
            self.open.pop()
        self._safe(end)

    def value(self, match: re.Match[bytes]) -> bool:
        """Take a string or scalar; False when it does not fit or goes on behind the limit."""
        string = match.group(1) is not None
        whole = bool(match.group(1)) if string else match.end() < self.limit
        return whole and self._safe(match.end())

    def closed(self) -> bytes | None:
        """The text, closed at the last safe place; None when there is none."""
        return None if self.at is None else self.text[: self.at] + self._closers()

    def closed_in_string(self, match: re.Match[bytes]) -> bytes | None:
        """The text, closed within a string; None when not even "" fits, and for other values."""
        end = self.limit - 1 - len(self.open)
        if match.group(1) is None or end <= match.start():
            return None
        inside = _INSIDE_STRING.match(self.text, match.start() + 1, end)
        assert inside is not None  # it matches the empty text too
        return self.text[: _whole(self.text, inside.end())] + b'"' + self._closers()

    def _safe(self, end: int) -> bool:
        if end + len(self.open) > self.limit:
            return False
        self.at = end
        return True

    def _closers(self) -> bytes:
        return b"".join(reversed(self.open))


def _closed(text: bytes, limit: int) -> bytes | None:
    """The text as JSON of at most `limit` bytes; None when it is not JSON as far as it was read."""
    cut = _Cut(text, limit)
    value_next = True  # a string is a member's name otherwise
    for match in _TOKEN.finditer(text, 0, limit):
        if cut.complete():
            return None
        token = match.group()
        if token in _CLOSER:
            value_next = token == b"["
            if not cut.push(token, match.end()):
                break
        elif token in (b"}", b"]"):
            cut.pop(match.end())
        elif token in (b",", b":"):
            value_next = token == b":" or cut.open[-1] == b"]"
        elif value_next:
            if not cut.value(match):
                return cut.closed_in_string(match) or cut.closed()
        elif token[:1] != b'"':
            return None  # a name without quotes
    return cut.closed()


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True

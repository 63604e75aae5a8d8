"""The kernels of `columns` in plain Python: what the native ones are held to, and used where those lack.

Same names, same bytes in and out as `_native.wire`; `columns` says what they mean.
"""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ABSENT, _OK, _NOT_A_NUMBER, _OUT_OF_RANGE = range(4)
_STRING, _NUMBER, _TRUE, _FALSE, _NULL, _OBJECT, _ARRAY = range(1, 8)
_NO_MATCH, _MALFORMED = -1, -2
_MAX_DEPTH = 128
_MAX_VALUE = 512

_ASCII_BLANKS = b" \t\n\x0c\r"
_INT = re.compile(rb"[+-]?[0-9]+(?:\.0*)?")
_DOUBLE = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_UNITS = ((b"ns", 1e9), (b"us", 1e6), ("µs".encode(), 1e6), ("μs".encode(), 1e6), (b"ms", 1e3), (b"s", 1.0))


def _slices(data: bytes, offs: bytes, lens: bytes) -> Iterator[tuple[int, bytes]]:
    for (off,), (length,) in zip(
        struct.iter_unpack("<I", offs), struct.iter_unpack("<I", lens), strict=False
    ):
        yield off, data[off : off + length] if off + length <= len(data) else b""


def _match(off: int = 0, length: int = 0, kind: int = 0, *, escaped: bool = False) -> bytes:
    return struct.pack("<IIB?xx", off, length, kind, escaped)


# Numbers


def parse_int(data: bytes, offs: bytes, lens: bytes) -> tuple[bytes, bytes]:
    """Whole numbers, and how each went."""
    return _numbers("<q", (_int(text) for _, text in _slices(data, offs, lens)))


def parse_double(data: bytes, offs: bytes, lens: bytes, durations: bool) -> tuple[bytes, bytes]:  # noqa: FBT001 (the native signature)
    """Finite numbers, and how each went."""
    return _numbers("<d", (_double(text, durations=durations) for _, text in _slices(data, offs, lens)))


def _numbers(layout: str, results: Iterator[tuple[float, int]]) -> tuple[bytes, bytes]:
    pairs = list(results)
    return b"".join(struct.pack(layout, value) for value, _ in pairs), bytes(state for _, state in pairs)


def _int(text: bytes) -> tuple[int, int]:
    text = text.strip(_ASCII_BLANKS)
    if not text:
        return 0, _ABSENT
    if not _INT.fullmatch(text):
        return 0, _NOT_A_NUMBER
    digits = text.partition(b".")[0]
    if len(digits.lstrip(b"+-").lstrip(b"0")) > 19:  # noqa: PLR2004 (the digits of the largest i64)
        return 0, _OUT_OF_RANGE
    value = int(digits)
    return (value, _OK) if -(2**63) <= value < 2**63 else (0, _OUT_OF_RANGE)


def _double(text: bytes, *, durations: bool) -> tuple[float, int]:
    text = text.strip(_ASCII_BLANKS)
    if not text:
        return 0.0, _ABSENT
    divisor = 1.0
    if durations:
        for unit, a_second in _UNITS:
            if text.endswith(unit):
                text, divisor = text.removesuffix(unit), a_second
                break
    if not _DOUBLE.fullmatch(text):
        return 0.0, _NOT_A_NUMBER
    value = float(text)
    return (value / divisor, _OK) if math.isfinite(value) else (0.0, _OUT_OF_RANGE)


# URLs


def query_param(data: bytes, offs: bytes, lens: bytes, name: bytes, bare: bool) -> bytes:  # noqa: FBT001 (the native signature)
    """The first occurrence of a query parameter."""
    out = []
    for off, text in _slices(data, offs, lens):
        found = _parameter(text, name, bare=bare)
        if found is None:
            out.append(_match())
        else:
            at, raw = found
            out.append(_match(off + at, len(raw), _STRING, escaped=b"%" in raw or b"+" in raw))
    return b"".join(out)


def query_int(data: bytes, offs: bytes, lens: bytes, name: bytes, bare: bool) -> tuple[bytes, bytes]:  # noqa: FBT001 (the native signature)
    """`query_param` read as whole numbers."""
    found = (_parameter(text, name, bare=bare) for _, text in _slices(data, offs, lens))
    return _numbers("<q", ((0, _ABSENT) if one is None else _int(_unquoted(one[1])) for one in found))


def _parameter(text: bytes, name: bytes, *, bare: bool) -> tuple[int, bytes] | None:
    text = text.partition(b"#")[0]
    mark = text.find(b"?")
    if mark < 0 and not bare:
        return None
    at = 0 if bare and mark != 0 else mark + 1
    for pair in text[at:].split(b"&"):
        key, equals, value = pair.partition(b"=")
        if _unquoted(key) == name:
            return at + len(key) + len(equals), value
        at += len(pair) + 1
    return None


def _unquoted(raw: bytes) -> bytes:
    return unquote_to_bytes(raw.replace(b"+", b" "))


# Attribute values


def first_text(data: bytes, offs: bytes, lens: bytes) -> bytes:
    """The first string of each ArrayValue message."""
    out = []
    for off, message in _slices(data, offs, lens):
        found = _first_string(message)
        out.append(_match() if found is None else _match(off + found[0], found[1], _STRING))
    return b"".join(out)


def same_text(data: bytes, offs: bytes, lens: bytes, other_offs: bytes, other_lens: bytes) -> bytes:
    """Whether pairs of texts are the same but for ASCII case."""
    pairs = zip(_slices(data, offs, lens), _slices(data, other_offs, other_lens), strict=False)
    return bytes(one.lower() == other.lower() for (_, one), (_, other) in pairs)


def _first_string(message: bytes) -> tuple[int, int] | None:
    """Offset and length of the first string; upb does not say where a field stood, so it is walked."""
    for number, at, value in _fields(message):
        if number is None:
            return None
        if number == 1 and value is not None:
            found: tuple[int, int] | None = None
            for inner, inner_at, text in _fields(value):
                if inner is None:
                    return None
                if inner == 1 and text is not None:
                    found = at + inner_at, len(text)
                elif 2 <= inner <= 7:  # noqa: PLR2004 (the other members of AnyValue's oneof)
                    found = None
            if found is not None:
                return found
    return None


def _fields(message: bytes) -> Iterator[tuple[int | None, int, bytes | None]]:
    """Number, offset of the payload, and payload where it has a length; a None number: broken here."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = None if tag is None else tag & 7
        size: int | None
        if wire == 0:
            value, end = _varint(message, at)
            yield (None if value is None or tag is None else tag >> 3), at, None
            at = end
            continue
        if wire == 2:  # noqa: PLR2004 (protobuf's LEN)
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}.get(-1 if wire is None else wire)
        if tag is None or size is None or at + size > len(message):
            yield None, at, None
            return
        yield tag >> 3, at, message[at : at + size] if wire == 2 else None  # noqa: PLR2004
        at += size


def _varint(message: bytes, at: int) -> tuple[int | None, int]:
    value = 0
    for shift in range(0, 64, 7):
        if at >= len(message):
            return None, at
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:  # noqa: PLR2004 (the continuation bit)
            return value & 0xFFFFFFFFFFFFFFFF, at
    return None, at


# JSON

_BLANKS = re.compile(rb"[ \t\n\r]*")
# Possessive, so that a string without an end is refused in linear time.
_JSON_STRING = re.compile(rb'"((?:[^"\\]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+)"')
_JSON_NUMBER = re.compile(rb"-?(?:0|[0-9]+)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\(?:.)", re.DOTALL
)
_SHORT_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_LITERALS = ((b"true", _TRUE), (b"false", _FALSE), (b"null", _NULL))
_PATH = re.compile(r"(?:[^.\[\]]*(?:\[\*\])*)(?:\.[^.\[\]]*(?:\[\*\])*)*")


class _MalformedError(Exception):
    pass


class _FoundAll(Exception):  # noqa: N818 (not a failure)
    pass


def _unescape(raw: bytes) -> bytes:
    def decoded(match: re.Match[bytes]) -> bytes:
        escape = match[0]
        if escape[1:2] != b"u":
            return _SHORT_ESCAPES.get(escape[1:], escape[1:])
        units = b"".join(bytes.fromhex(unit.decode()) for unit in escape.split(b"\\u")[1:])
        return units.decode("utf-16-be", "replace").encode()

    return _ESCAPE.sub(decoded, raw)


class _Node:
    def __init__(self) -> None:
        self.members: dict[bytes, _Node] = {}
        self.items: _Node | None = None
        self.path: int | None = None


_Seen = tuple[int, int, int, int, bool, int]  # path, offset, length, type, escaped, decoded length


class JsonPaths:
    """Paths compiled into a trie."""

    def __init__(self, paths: Sequence[str], unless_type: Sequence[str]) -> None:
        self._root = _Node()
        self._count = len(paths)
        self._unless = frozenset(text.encode() for text in unless_type)
        for number, path in enumerate(paths):
            if not _PATH.fullmatch(path):
                raise ValueError(f'"{path}": a path is members and [*], as in messages[*].content')
            at = self._root
            for part in filter(None, path.split(".")):
                name = part.replace("[*]", "")
                if name:
                    at = at.members.setdefault(name.encode(), _Node())
                for _ in range(part.count("[*]")):
                    at.items = at.items or _Node()
                    at = at.items
            at.path = number if at.path is None else at.path

    def text_bytes(self, data: bytes, offs: bytes, lens: bytes) -> bytes:
        """UTF-8 bytes of all strings that the paths lead to."""
        return self._measures(self._text_bytes, _slices(data, offs, lens))

    def any_value_bytes(self, data: bytes, offs: bytes, lens: bytes, kvlist: bool) -> bytes:  # noqa: FBT001 (the native signature)
        """The same measure over KeyValueList or ArrayValue messages."""

        def measure(message: bytes) -> int:
            value = AnyValue()
            try:
                if kvlist:
                    value.kvlist_value.MergeFrom(KeyValueList.FromString(message))
                else:
                    value.array_value.MergeFrom(ArrayValue.FromString(message))
                sizes = self._strings_of(self._root, value, 0)
            except (DecodeError, _MalformedError):
                return _MALFORMED
            return sum(sizes) if sizes else _NO_MATCH

        return self._measures(measure, _slices(data, offs, lens))

    def find(self, data: bytes, offs: bytes, lens: bytes) -> bytes:
        """The first value at each path."""
        out: list[bytes] = []
        for off, text in _slices(data, offs, lens):
            found: dict[int, bytes] = {}
            try:
                for path, at, length, kind, escaped, _ in _Walk(text, self._unless, keep_all=True).document(
                    self._root
                ):
                    found.setdefault(path, _match(off + at, length, kind, escaped=escaped))
            except _MalformedError:
                pass  # what stood before the break counts
            out.extend(found.get(path, _match()) for path in range(self._count))
        return b"".join(out)

    def _measures(self, measure: Callable[[bytes], int], slices: Iterator[tuple[int, bytes]]) -> bytes:
        return b"".join(struct.pack("<q", measure(text)) for _, text in slices)

    def _text_bytes(self, text: bytes) -> int:
        try:
            seen = list(_Walk(text, self._unless, keep_all=False).document(self._root))
        except _MalformedError:
            return _MALFORMED
        sizes = [decoded for _, _, _, kind, _, decoded in seen if kind == _STRING]
        return sum(sizes) if sizes else _NO_MATCH

    def _strings_of(self, node: _Node, value: AnyValue, depth: int) -> list[int]:
        which = value.WhichOneof("value")
        if which == "string_value" and node.path is not None:
            return [len(value.string_value.encode())]
        if which not in {"array_value", "kvlist_value"}:
            return []
        if depth >= _MAX_DEPTH:
            raise _MalformedError
        sizes: list[int] = []
        if which == "array_value" and node.items is not None:
            for item in value.array_value.values:
                sizes += self._strings_of(node.items, item, depth + 1)
        for pair in value.kvlist_value.values:
            if pair.key == "type" and pair.value.string_value.encode() in self._unless:
                return []
            child = node.members.get(pair.key.encode())
            if child is not None:
                sizes += self._strings_of(child, pair.value, depth + 1)
        return sizes


class _Walk:
    """One text, walked from left to right; what paths lead to is yielded as it is met."""

    def __init__(self, text: bytes, unless: frozenset[bytes], *, keep_all: bool) -> None:
        self._text = text
        self._unless = unless
        self._keep_all = keep_all
        self._at = 0

    def document(self, root: _Node) -> Iterator[_Seen]:
        yield from self._value(root, 0)
        self._blanks()
        if self._at != len(self._text):
            raise _MalformedError

    def _value(self, node: _Node | None, depth: int) -> Iterator[_Seen]:
        self._blanks()
        start, end, kind, escaped, decoded = self._at, 0, _NUMBER, False, 0
        first = self._text[start : start + 1]
        if first == b'"':
            raw = self._string()
            start, end, kind = start + 1, self._at - 1, _STRING
            escaped, decoded = b"\\" in raw, len(_unescape(raw)) if b"\\" in raw else len(raw)
        elif first == b"{":
            yield from self._object(node, depth)
            kind = _OBJECT
        elif first == b"[":
            yield from self._array(node, depth)
            kind = _ARRAY
        else:
            kind = self._scalar(depth)
        if node is not None and node.path is not None:
            yield node.path, start, (end or self._at) - start, kind, escaped, decoded

    def _object(self, node: _Node | None, depth: int) -> Iterator[_Seen]:
        self._enter(depth)
        seen: list[_Seen] = []
        excluded = False
        if self._take(b"}"):
            return
        while True:
            self._blanks()
            key = _unescape(self._string())
            self._expect(b":")
            self._blanks()
            if node is not None and key == b"type":
                match = _JSON_STRING.match(self._text, self._at)
                excluded |= match is not None and _unescape(match[1]) in self._unless
            values = self._value(None if node is None else node.members.get(key), depth + 1)
            if self._keep_all:
                yield from values
            else:
                seen += values
            if not self._take(b","):
                break
        self._expect(b"}")
        if not excluded:
            yield from seen

    def _array(self, node: _Node | None, depth: int) -> Iterator[_Seen]:
        self._enter(depth)
        if self._take(b"]"):
            return
        while True:
            yield from self._value(None if node is None else node.items, depth + 1)
            if not self._take(b","):
                break
        self._expect(b"]")

    def _enter(self, depth: int) -> None:
        self._at += 1
        if depth >= _MAX_DEPTH:
            raise _MalformedError

    def _string(self) -> bytes:
        match = _JSON_STRING.match(self._text, self._at)
        if match is None:
            raise _MalformedError
        self._at = match.end()
        return match[1]

    def _scalar(self, depth: int) -> int:
        for word, kind in _LITERALS:
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return kind
        match = _JSON_NUMBER.match(self._text, self._at)
        if match is None:
            raise _MalformedError
        self._at = match.end()
        # A number that the text ends with may have lost digits; one in brackets never ends a whole text.
        if self._text[self._at : self._at + 1] in (b".", b"e", b"E") or (
            depth and self._at == len(self._text)
        ):
            raise _MalformedError
        return _NUMBER

    def _blanks(self) -> None:
        match = _BLANKS.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _take(self, byte: bytes) -> bool:
        self._blanks()
        taken = self._text.startswith(byte, self._at)
        self._at += taken
        return taken

    def _expect(self, byte: bytes) -> None:
        if not self._take(byte):
            raise _MalformedError


# Lists


class Words:
    """A list of words, compared without regard to ASCII case."""

    def __init__(self, words: Sequence[bytes], mode: str) -> None:
        if mode not in {"verbatim", "exact", "prefix", "path_end"}:
            raise ValueError(f'"{mode}" is not verbatim, exact, prefix or path_end')
        self._words = [word if mode == "verbatim" else word.lower() for word in words]
        self._mode = mode

    def lookup(self, data: bytes, offs: bytes, lens: bytes) -> bytes:
        """For each text the place of the first word that fits, or -1."""
        texts = (text for _, text in _slices(data, offs, lens))
        return b"".join(
            struct.pack("<h", self._find(text if self._mode == "verbatim" else text.lower()))
            for text in texts
        )

    def _find(self, text: bytes) -> int:
        if self._mode == "path_end":
            text = re.split(rb"[?#]", text, maxsplit=1)[0].rstrip(b"/")
        return next((at for at, word in enumerate(self._words) if self._fits(text, word)), -1)

    def _fits(self, text: bytes, word: bytes) -> bool:
        if self._mode in {"verbatim", "exact"}:
            return text == word
        return text.startswith(word) if self._mode == "prefix" else text.endswith(word)


class KeyPatterns:
    """Keys with numbers in them."""

    def __init__(self, patterns: Sequence[bytes]) -> None:
        self._patterns = [
            re.compile(rb"[0-9]+".join(map(re.escape, pattern.split(b"#")))) for pattern in patterns
        ]

    def lookup(self, data: bytes, offs: bytes, lens: bytes) -> bytes:
        """For each key the place of the first pattern that fits, or -1."""
        return b"".join(struct.pack("<h", self._find(key)) for _, key in _slices(data, offs, lens))

    def _find(self, key: bytes) -> int:
        return next((at for at, pattern in enumerate(self._patterns) if pattern.fullmatch(key)), -1)


# Lineage


class Lineage:
    """Spans by id and values by response id, in two generations."""

    def __init__(self, capacity: int) -> None:
        self._half = max(capacity // 2, 1)
        self._spans: list[dict[bytes, tuple[bytes, bytes]]] = [{}, {}]
        self._ids: list[dict[bytes, bytes]] = [{}, {}]

    def __len__(self) -> int:
        return sum(map(len, self._spans))

    def remember(  # noqa: PLR0917 (the native signature)
        self, traces: bytes, spans: bytes, parents: bytes, data: bytes, offs: bytes, lens: bytes
    ) -> None:
        """Keep spans, and for each a value."""
        for row, (_, value) in enumerate(_slices(data, offs, lens)):
            self._make_room()
            key = traces[16 * row : 16 * row + 16] + spans[8 * row : 8 * row + 8]
            kept = value if len(value) <= _MAX_VALUE else b""
            self._spans[0][key] = parents[8 * row : 8 * row + 8], kept

    def remember_ids(self, data: bytes, id_offs: bytes, id_lens: bytes, offs: bytes, lens: bytes) -> None:
        """Keep values under ids."""
        for (_, key), (_, value) in zip(
            _slices(data, id_offs, id_lens), _slices(data, offs, lens), strict=True
        ):
            if 0 < len(key) <= _MAX_VALUE and 0 < len(value) <= _MAX_VALUE:
                self._make_room()
                self._ids[0][key] = value

    def ancestors(self, traces: bytes, parents: bytes, hops: int) -> tuple[bytes, bytes]:
        """The nearest ancestor's value for each span."""
        return _texts(
            [
                self._inherited(traces[16 * row : 16 * row + 16], parents[8 * row : 8 * row + 8], hops)
                for row in range(len(parents) // 8)
            ]
        )

    def counterparts(self, data: bytes, offs: bytes, lens: bytes) -> tuple[bytes, bytes]:
        """The value kept under each id."""
        return _texts([self._paired(key) for _, key in _slices(data, offs, lens)])

    def _make_room(self) -> None:
        if len(self._spans[0]) >= self._half or len(self._ids[0]) >= self._half:
            self._spans = [{}, self._spans[0]]
            self._ids = [{}, self._ids[0]]

    def _inherited(self, trace: bytes, at: bytes, hops: int) -> bytes | None:
        for _ in range(hops):
            span = self._spans[0].get(trace + at) or self._spans[1].get(trace + at)
            if not any(at) or span is None:
                return None
            at, value = span
            if value:
                return value
        return None

    def _paired(self, key: bytes) -> bytes | None:
        base = re.fullmatch(rb"(.*)[-_][0-9]+", key, re.DOTALL)
        for candidate in (key, base[1] if base else key):
            value = self._ids[0].get(candidate) or self._ids[1].get(candidate)
            if value is not None:
                return value
        return None


def _texts(values: list[bytes | None]) -> tuple[bytes, bytes]:
    blob, records = bytearray(), bytearray()
    for value in values:
        records += _match() if value is None else _match(len(blob), len(value), _STRING)
        blob += value or b""
    return bytes(blob), bytes(records)

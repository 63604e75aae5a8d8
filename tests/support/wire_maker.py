"""Random trace requests, made byte by byte: what stock encoders never write included."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

KEYS = [
    "http.method",
    "http.target",
    "gen_ai.prompt.0.content",
    "gen_ai.prompt.1.content",
    "n",
    "",
    "e",
    "中文.ключ",
]
BAD_TEXTS = [b"\xe4\xbd\xa0\xe5\xa5", b"\xff", b"a\xc0\x80b", b"\xed\xa0\x80", b"x" * 200 + b"\xf0\x9f\x98"]


def varint(value: int, padding: int = 0) -> bytes:
    """A varint, longer than needed by `padding` bytes."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(padding):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def sized(number: int, content: bytes) -> bytes:
    """A length-delimited field, plainly encoded."""
    return varint(number << 3 | 2) + varint(len(content)) + content


class WireMaker:
    """Makes requests that a decoder must take.

    Attributes:
        odd: fields in any order, repeated, padded, of unknown numbers and of wrong wire types.
        bad_text: strings that are not UTF-8.
    """

    def __init__(self, random: Random, *, odd: bool = False, bad_text: bool = False) -> None:
        self._random = random
        self._odd = odd
        self._bad_text = bad_text

    def request(self) -> bytes:
        """An ExportTraceServiceRequest."""
        return self._message([(1, self._resource_spans()) for _ in range(self._few())])

    def _resource_spans(self) -> bytes:
        fields = [(1, self._resource()) for _ in range(self._maybe())]
        fields += [(2, self._scope_spans()) for _ in range(self._few())]
        fields += [(3, self._text()) for _ in range(self._maybe())]
        return self._message(fields)

    def _resource(self) -> bytes:
        entity_refs = [(3, self._entity_ref()) for _ in range(self._maybe())]
        return self._message([*self._attributes(1), *entity_refs])

    def _entity_ref(self) -> bytes:
        return self._message([(number, self._text()) for number in (1, 2, 3, 3, 4)])

    def _scope_spans(self) -> bytes:
        fields = [(1, self._scope()) for _ in range(self._maybe())]
        fields += [(2, self._span()) for _ in range(self._few())]
        fields += [(3, self._text()) for _ in range(self._maybe())]
        return self._message(fields)

    def _scope(self) -> bytes:
        return self._message([(1, self._text()), (2, self._text()), *self._attributes(3)])

    def _span(self) -> bytes:
        fields = [
            (1, self._id(16)),
            (2, self._id(8)),
            (3, self._text()),
            (5, self._text()),
            (6, self._random.choice([0, 1, 2, 3, 5, 6, 300, 2**32 + 2])),
            (7, self._fixed(8)),
            (8, self._fixed(8)),
            *self._attributes(9),
            (10, self._random.randrange(1000)),
            (15, self._message([(2, self._text()), (3, self._random.choice([0, 1, 2, 3, 2**31]))])),
            (16, self._fixed(4)),
        ]
        fields += [(4, self._id(8)) for _ in range(self._maybe())]
        fields += [(11, self._event()) for _ in range(self._random.choice([0, 0, 1, 3]))]
        fields += [(13, self._link()) for _ in range(self._random.choice([0, 0, 1, 3]))]
        return self._message([item for item in fields if self._random.random() < 0.95])

    def _event(self) -> bytes:
        return self._message([(1, self._fixed(8)), (2, self._text()), *self._attributes(3)])

    def _link(self) -> bytes:
        return self._message([(1, self._id(16)), (2, self._id(8)), (3, self._text()), *self._attributes(4)])

    def _attributes(self, number: int) -> list[tuple[int, bytes | int | tuple[bytes]]]:
        return [(number, self._key_value(3)) for _ in range(self._random.choice([0, 1, 2, 5]))]

    def _key_value(self, depth: int) -> bytes:
        key = self._random.choice(KEYS).encode()
        if self._bad_text and self._random.random() < 0.1:
            key = self._random.choice(BAD_TEXTS)
        values = [(2, self._any_value(depth)) for _ in range(self._maybe())]
        return self._message([(1, key), *values])

    def _any_value(self, depth: int) -> bytes:
        kind = self._random.choice([0, 1, 1, 2, 3, 4, 5, 6, 7] if depth else [1, 2, 3, 4])
        return self._message([] if kind == 0 else [(kind, self._member(kind, depth))])

    def _member(self, kind: int, depth: int) -> bytes | int | tuple[bytes]:
        random = self._random
        match kind:
            case 1:
                return self._text()
            case 2:
                return random.choice([0, 1, 2**40])
            case 3:
                return random.choice([0, 1, 127, 128, 2**63 - 1, 2**63, 2**64 - 1, random.getrandbits(64)])
            case 4:
                return self._fixed(8)
            case 5:
                return self._message([(1, self._any_value(depth - 1)) for _ in range(self._few())])
            case 6:
                return self._message([(1, self._key_value(depth - 1)) for _ in range(self._few())])
        return random.randbytes(random.choice([0, 3, 200]))

    def _message(self, fields: list[tuple[int, bytes | int | tuple[bytes]]]) -> bytes:
        random = self._random
        if self._odd:
            for _ in range(self._maybe()):
                fields = [*fields, self._unknown()]
            if random.random() < 0.2 and fields:
                fields = [*fields, random.choice(fields)]
            if random.random() < 0.2:
                fields = random.sample(fields, len(fields))
        return b"".join(self._field(number, content) for number, content in fields)

    def _field(self, number: int, content: bytes | int | tuple[bytes]) -> bytes:
        if isinstance(content, int):
            return self._varint(number << 3, 4) + self._varint(content, 9)
        if isinstance(content, bytes):
            return self._varint(number << 3 | 2, 4) + self._varint(len(content), 4) + content
        wire_type = 1 if len(content[0]) == 8 else 5
        return self._varint(number << 3 | wire_type, 4) + content[0]

    def _varint(self, value: int, longest: int) -> bytes:
        plain = varint(value)
        if not self._odd or self._random.random() < 0.95:
            return plain
        return varint(value, self._random.randrange(longest + 1 - min(len(plain), longest)))

    def _unknown(self) -> tuple[int, bytes | int | tuple[bytes]]:
        """A field of a number OTLP does not have, or of one it has with another wire type."""
        random = self._random
        number = random.choice([1, 2, 5, 9, 15, 16, 17, 99, 5000, 2**29 - 1])
        if number in {1, 2, 5, 9, 15}:
            # Fixed32 is a wire type that none of these numbers has in any message.
            return number, self._fixed(4)
        return number, random.choice(
            [random.getrandbits(64), random.randbytes(random.randrange(9)), self._fixed(8)]
        )

    def _text(self) -> bytes:
        random = self._random
        if self._bad_text and random.random() < 0.1:
            return random.choice(BAD_TEXTS)
        return random.choice(
            ["", "GET", "/v1/x?n=3", "你好" * random.randrange(60), "a" * random.randrange(300)]
        ).encode()

    def _id(self, length: int) -> bytes:
        draw = self._random.random()
        if draw < 0.85:
            return self._random.randbytes(length)
        return bytes(length) if draw < 0.9 else self._random.randbytes(self._random.randrange(20))

    def _fixed(self, length: int) -> tuple[bytes]:
        value = self._random.getrandbits(8 * length)
        return (struct.pack("<Q" if length == 8 else "<I", value),)

    def _few(self) -> int:
        return self._random.choice([0, 1, 1, 2, 4])

    def _maybe(self) -> int:
        return int(self._random.random() < 0.7)


def mutated(random: Random, data: bytes, other: bytes) -> bytes:
    """The request with bits flipped, cut off, or run together with another."""
    for _ in range(random.randrange(1, 4)):
        out = bytearray(data)
        place = random.randrange(len(out) + 1)
        match random.randrange(5):
            case 0 if place < len(out):
                out[place] ^= 1 << random.randrange(8)
            case 1:
                del out[place:]
            case 2:
                del out[place : place + random.randrange(8)]
            case 3:
                out[place:place] = random.randbytes(random.randrange(4))
            case _:
                out[place:] = other[random.randrange(len(other) + 1) :]
        data = bytes(out)
    return data

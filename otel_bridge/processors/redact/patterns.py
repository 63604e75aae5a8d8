"""Credentials and personal data found by their shape, in time linear in the text (RE2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import orjson
import re2

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    Expression = re.Pattern[bytes]

JSON_OPENERS = (b"{", b"[", b'"')
_MOST_MISSES = 1_000
"""Lookalikes in one text that are checked; where there are so many, further ones are hidden unchecked."""
DEEPEST = 100
"""Levels of JSON that are masked value by value; what lies below is hidden whole."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of thing to hide.

    Attributes:
        regex: RE2 syntax.
        check: looks at a match of the expression; False leaves it.
        default: whether it is on unless the user says otherwise.
    """

    regex: str
    check: Callable[[bytes], bool] | None = None
    default: bool = True


def luhn(match: bytes) -> bool:
    """Whether the digits' check digit is right (ISO/IEC 7812-1)."""
    digits = [byte - 48 for byte in match if 48 <= byte <= 57]  # noqa: PLR2004 (ASCII digits)
    doubled = (2 * digit - 9 * (digit > 4) for digit in digits[-2::-2])  # noqa: PLR2004 (digit sum of 2 * digit)
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


BUILT_IN = {
    "email": Pattern(
        r"[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+[A-Za-z]{2,24}\b",
    ),
    "api_key": Pattern(
        r"\b(?:sk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic, OpenRouter, DeepSeek, LiteLLM
        r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
        r"|(?:AKIA|ASIA)[A-Z0-9]{16}"  # AWS
        r"|AIza[A-Za-z0-9_-]{35}"  # Google
        r"|gh[oprsu]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}"
        r"|hf_[A-Za-z0-9]{30,}|nvapi-[A-Za-z0-9_-]{30,}|gsk_[A-Za-z0-9]{30,}|r8_[A-Za-z0-9]{30,}"
        r"|(?:pk|sk)-lf-[A-Za-z0-9-]{30,}|lsv2_(?:pt|sk)_[A-Za-z0-9_]{30,}"
        r"|xox[abeoprs]-[A-Za-z0-9-]{10,})",
    ),
    "bearer": Pattern(r"(?i:\b(?:bearer|basic)[ \t]+[a-z0-9._~+/-]{8,}=*)"),
    "jwt": Pattern(r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    "card": Pattern(
        r"\b(?:[2-6][0-9]{3}[ -]?[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{1,7}"
        r"|3[0-9]{3}[ -]?[0-9]{6}[ -]?[0-9]{4,5}|[2-6][0-9]{12,18})\b",
        luhn,
    ),
    "private_key": Pattern(
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[A-Za-z0-9+/=\s\\]*"
        r"(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----)?"
    ),
    "phone": Pattern(
        r"(?:\+[1-9][0-9]{0,2}[ .-]?|\b)(?:\([0-9]{2,4}\)[ .-]?)?[0-9]{2,4}[ .-][0-9]{3,4}[ .-]?[0-9]{3,4}\b"
        r"|\+[1-9][0-9]{7,14}\b",
        default=False,
    ),
}
"""By the name that configuration, metrics and replacements use."""


def compiled(regex: str) -> Expression:
    """An expression over UTF-8 bytes.

    Raises:
        ValueError: what is wrong with it.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return cast("Expression", re2.compile(regex.encode(), options=options))
    except re2.error as error:
        raise ValueError(error.args[0].decode()) from None


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    expression: Expression
    replacement: bytes
    check: Callable[[bytes], bool] | None


class Masker:
    """Hides what the chosen patterns match."""

    def __init__(self, built_in: Sequence[str], custom: Sequence[tuple[str, str, str | None]]) -> None:
        """Take names of `BUILT_IN`, and (name, regex, replacement) of the user's own."""
        self._kinds = [
            *(_Kind(n, compiled(BUILT_IN[n].regex), f"[{n}]".encode(), BUILT_IN[n].check) for n in built_in),
            *(_Kind(n, compiled(r), (f"[{n}]" if t is None else t).encode(), None) for n, r, t in custom),
        ]
        regexes = [*(BUILT_IN[name].regex for name in built_in), *(regex for _, regex, _ in custom)]
        # Most texts match nothing, and one pass over them says so.
        self._any = compiled("|".join(f"(?:{regex})" for regex in regexes)) if regexes else None
        self._anchored = bool(custom)

    def __bool__(self) -> bool:
        """Whether there is any pattern."""
        return self._any is not None

    @property
    def names(self) -> list[str]:
        """The patterns' names."""
        return [kind.name for kind in self._kinds]

    def may_match(self, texts: Sequence[bytes]) -> bool:
        """False when no text holds a match: one look at many short texts."""
        if self._any is None or not texts:
            return False
        # Between texts stands a byte that no built-in pattern matches; one of the user's might look for it.
        return self._anchored or self._any.search(b"\0".join(texts)) is not None

    def mask(self, text: bytes, hits: dict[str, int]) -> bytes:
        """The text with every match replaced; the very same object when there is none.

        JSON stays well formed: where a replacement in the raw text would break it (a number, half an
        escape), its strings and numbers are masked one by one instead.

        Args:
            text: UTF-8.
            hits: matches by the pattern's name, added to.
        """
        if self._any is None or self._any.search(text) is None:
            return text
        found: dict[str, int] = {}
        masked = self._replace(text, found)
        if found and text.lstrip()[:1] in JSON_OPENERS and _is_json(text) and not _is_json(masked):
            masked = orjson.dumps(self._leaves(orjson.loads(text), DEEPEST))
        for name, count in found.items():
            hits[name] = hits.get(name, 0) + count
        return masked if found else text

    def _replace(self, text: bytes, found: dict[str, int]) -> bytes:
        for kind in self._kinds:
            text = _substitute(kind, text, found)
        return text

    def _leaves(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._replace(value.encode(), {}).decode()
        if isinstance(value, list | dict) and not depth:
            return "[nested]"
        if isinstance(value, list):
            return [self._leaves(item, depth - 1) for item in value]
        if isinstance(value, dict):
            return {self._leaves(key, depth): self._leaves(item, depth - 1) for key, item in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool):
            shown = orjson.dumps(value)
            masked = self._replace(shown, {})
            return value if masked == shown else masked.decode()
        return value


def _substitute(kind: _Kind, text: bytes, found: dict[str, int]) -> bytes:
    pieces: list[bytes] = []
    done = position = count = misses = 0
    check = kind.check
    while (match := kind.expression.search(text, position)) is not None:
        start, end = match.span()
        if check is not None and not check(match.group()):
            misses += 1
            if misses == _MOST_MISSES:
                check = None
            position = start + 1  # what looks like one may begin within what only looked like one
            continue
        if end > start:
            pieces += (text[done:start], kind.replacement)
            done = end
            count += 1
        position = max(end, start + 1)
    if not count:
        return text
    found[kind.name] = found.get(kind.name, 0) + count
    return b"".join((*pieces, text[done:]))


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True

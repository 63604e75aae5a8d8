"""Patterns that users write for label values: RE2, which takes linear time whatever the text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2


@lru_cache(maxsize=1000)
def compile_pattern(pattern: str) -> Any:
    """A compiled pattern.

    Raises:
        ValueError: it is none.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"{pattern!r} is no RE2 pattern: {error}") from None

"""What is wrong with a YAML document, for a person: the place, the line, what was found, what is allowed.

Shared by everything that users write: the configuration, rule sets.
"""

from __future__ import annotations

import difflib
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from otel_bridge.errors import ConfigProblem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pydantic import BaseModel
    from pydantic_core import ErrorDetails

Path = tuple[str, ...]
"""Keys and list indices from the top of a document."""

TAG = "<{}>"
"""How unions name their branches, so that the name is told apart from the document's keys."""


def lines_of(node: yaml.Node | None, path: Path = ()) -> Iterator[tuple[Path, int]]:
    """The line (from 1) of each key and list item of a composed document."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            where = (*path, str(key.value))
            yield where, key.start_mark.line + 1
            yield from lines_of(value, where)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            where = (*path, str(index))
            yield where, value.start_mark.line + 1
            yield from lines_of(value, where)


def line_hint(path: Path, lines: Mapping[Path, int]) -> str:
    """Where the path, or the nearest place above it, stands ("line 7"); empty when that is not known."""
    line = next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), None)
    return f"line {line}" if line is not None else ""


def problems_of(
    model: type[BaseModel], errors: Iterable[ErrorDetails], lines: Mapping[Path, int]
) -> list[ConfigProblem]:
    """A validation's errors, one a place, as problems that a person can act on."""
    return [_problem(model, detail, lines) for detail in _distinct(errors)]


def nearest(name: str, allowed: Sequence[str]) -> str:
    """The allowed name that was probably meant, or all of them."""
    near = meant(name, allowed)
    return repr(near) if near else "one of " + ", ".join(allowed)


def meant(name: str, allowed: Sequence[str]) -> str:
    """The allowed name that was probably meant; empty: none is like it."""
    return next(iter(difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)), "")


def shown(value: Any) -> str:
    """A value as found, short; mappings and lists may hold secrets and are only named."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"  # noqa: PLR2004 (a line of a terminal)


def _distinct(details: Iterable[ErrorDetails]) -> Iterator[ErrorDetails]:
    """One problem a place: a union reports each of its branches."""
    seen: set[tuple[int | str, ...]] = set()
    for detail in details:
        if detail["loc"] not in seen:
            seen.add(detail["loc"])
            yield detail


def _problem(model: type[BaseModel], detail: ErrorDetails, lines: Mapping[Path, int]) -> ConfigProblem:
    tagged = tuple(str(key) for key in detail["loc"])
    keys = tuple(key for key in tagged if not _is_tag(key))
    hint = line_hint(keys, lines)
    path = ".".join(keys)
    if detail["type"] == "extra_forbidden":
        allowed = sorted(_keys_allowed(model, tagged[:-1]))
        return ConfigProblem(path, f"an unknown key {keys[-1]!r}", nearest(keys[-1], allowed), hint)
    found = "nothing" if detail["type"] == "missing" else shown(detail["input"])
    return ConfigProblem(path, found, _expected(detail), hint)


def _is_tag(key: str) -> bool:
    return key.startswith("<") and key.endswith(">")


def _expected(detail: ErrorDetails) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _keys_allowed(model: type[BaseModel], parents: Path) -> set[str]:
    """The keys that a mapping at this path may have, read off the models."""
    schema = _schema(model)
    node = schema
    for key in parents:
        node = _child(schema, node, key)
    return set(_resolved(schema, node).get("properties", {}))


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _child(schema: dict[str, Any], node: dict[str, Any], key: str) -> dict[str, Any]:
    if _is_tag(key):
        return _branch(schema, node, key)
    node = _resolved(schema, node)
    if key in node.get("properties", {}):
        child: dict[str, Any] = node["properties"][key]
        return child
    patterns = iter(node.get("patternProperties", {}).values())
    further = node.get("additionalProperties") or node.get("items") or next(patterns, None)
    return further if isinstance(further, dict) else {}


def _branch(schema: dict[str, Any], node: dict[str, Any], tag: str) -> dict[str, Any]:
    """The branch of a union that requires the key its tag names."""
    for option in _referred(schema, node).get("oneOf", []):
        if tag[1:-1] in _resolved(schema, option).get("required", []):
            return _resolved(schema, option)
    return {}


def _resolved(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    for option in node.get("anyOf", []):
        if "$ref" in option:
            node = option
            break
    return _referred(schema, node)


def _referred(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node

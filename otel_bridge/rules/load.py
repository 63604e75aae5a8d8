"""Rule sets read from files and checked as a whole: every mistake, each with its file and line."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from otel_bridge.errors import ConfigError, ConfigProblem
from otel_bridge.explain import line_hint, lines_of, meant, problems_of
from otel_bridge.rules.check import check_references, check_rule
from otel_bridge.rules.language import RuleSet
from otel_bridge.rules.vocabulary import Vocabulary
from otel_bridge.shipped import folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_bridge import explain
    from otel_bridge.rules.config import RulesConfig
    from otel_bridge.rules.language import Rule


@dataclass(frozen=True, slots=True)
class LoadedRule:
    """A checked rule and where it came from.

    Attributes:
        rule: itself.
        vocabulary: the names that it may use.
        file: the rule set's file.
        line: where it begins.
    """

    rule: Rule
    vocabulary: Vocabulary
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class _Document:
    file: str
    rules: RuleSet
    lines: Mapping[explain.Path, int]
    shipped: bool
    left_out: Sequence[str]

    def kept(self) -> Iterator[tuple[int, Rule]]:
        """The rules, each with its place in the file, but for those left out."""
        for index, rule in enumerate(self.rules.rules):
            if not any(fnmatchcase(rule.name, pattern) for pattern in self.left_out):
                yield index, rule

    def problem(self, path: explain.Path, found: str, expected: str) -> ConfigProblem:
        return located(self.file, ConfigProblem(".".join(path), found, expected, line_hint(path, self.lines)))


def located(file: str, problem: ConfigProblem) -> ConfigProblem:
    """The problem with its file and line in front, as editors and terminals follow them."""
    line = problem.hint.removeprefix("line ")
    place = f"{file}:{line}" if line else file
    return ConfigProblem(f"{place} {problem.path}".rstrip(), problem.found, problem.expected)


def rule_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and the *.yaml files of folders, sorted."""
    out: list[Path] = []
    for path in paths:
        out.extend(sorted(path.glob("*.yaml")) if path.is_dir() else [path])
    return out


def load_rules(paths: Iterable[Path]) -> list[LoadedRule]:
    """Read and check rule sets.

    Args:
        paths: files, and folders of *.yaml files.

    Raises:
        ConfigError: with every problem of every file.
    """
    return load_texts({str(path): _text(path) for path in rule_files(paths)})


def load_configured(config: RulesConfig) -> list[LoadedRule]:
    """The rules that a configuration asks for: the shipped ones, and those of its files.

    Raises:
        ConfigError: with every problem of every file; what ships with the bridge is not there.
    """
    if not config.enabled:
        return []
    shipped = _shipped_files() if config.shipped else []
    own = [path for path in rule_files(config.files) if path.resolve() not in shipped]
    return load_texts(
        {str(path): _text(path) for path in (*shipped, *own)},
        shipped={str(path) for path in shipped},
        left_out=config.exclude,
    )


def _shipped_files() -> list[Path]:
    try:
        return rule_files([folder("alerts/rules").resolve()])
    except FileNotFoundError as error:
        expected = "the rules that ship with the bridge, or `shipped: false`"
        raise ConfigError("rules", [ConfigProblem("rules.shipped", str(error), expected)]) from error


def load_texts(
    texts: Mapping[str, str], *, shipped: Collection[str] = (), left_out: Sequence[str] = ()
) -> list[LoadedRule]:
    """`load_rules`, of texts by the name of their file.

    Args:
        texts: the rule sets.
        shipped: which of them ship with the bridge.
        left_out: names or patterns of rules of those that are passed over.

    Raises:
        ConfigError: with every problem of every file.
    """
    problems: list[ConfigProblem] = []
    documents = []
    for file, text in texts.items():
        own = file not in shipped
        document = _parse(file, text, problems, shipped=not own, left_out=() if own else left_out)
        documents += [document] if document is not None else []
    problems.extend(_check_left_out(documents, left_out))
    loaded = [rule for document in documents for rule in _rules(document)]
    for document in documents:
        problems.extend(_check(document))
    problems.extend(_check_names(documents))
    if problems:
        raise ConfigError("rules", problems)
    return loaded


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigError("rules", [ConfigProblem(str(path), found, "a readable YAML file")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError("rules", [ConfigProblem(str(path), str(error), "UTF-8 text")]) from error


def _parse(
    file: str, text: str, problems: list[ConfigProblem], *, shipped: bool, left_out: Sequence[str]
) -> _Document | None:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        content: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        hint = _yaml_line(error)
        found = " ".join(str(error).split())
        expected = 'YAML (a test like "> 5" stands in quotes)'
        problems.append(located(file, ConfigProblem("", found, expected, hint)))
        return None
    lines = dict(lines_of(node))
    try:
        return _Document(file, RuleSet.model_validate(content), lines, shipped, left_out)
    except ValidationError as error:
        problems.extend(located(file, problem) for problem in problems_of(RuleSet, error.errors(), lines))
        return None


def _yaml_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}" if mark is not None else ""


def _check_left_out(documents: list[_Document], patterns: Sequence[str]) -> Iterator[ConfigProblem]:
    names = [rule.name for document in documents if document.shipped for rule in document.rules.rules]
    for index, pattern in enumerate(patterns):
        if any(fnmatchcase(name, pattern) for name in names):
            continue
        path = f"rules.exclude.{index}"
        if not names:
            found, expected = f"{pattern!r}, and no shipped rules", "an empty list, or `rules.shipped: true`"
            yield ConfigProblem(path, found, expected)
            continue
        near = meant(pattern, names)
        expected = "the name of a shipped rule, or a pattern like Kv*"
        hint = f"did you mean {near!r}? " if near else ""
        hint += "`otel-bridge rules explain` lists them all"
        yield ConfigProblem(path, repr(pattern), expected, hint)


def _rules(document: _Document) -> Iterator[LoadedRule]:
    vocabulary = Vocabulary(document.rules)
    for index, rule in document.kept():
        yield LoadedRule(rule, vocabulary, document.file, document.lines.get(("rules", str(index)), 1))


def _check(document: _Document) -> Iterator[ConfigProblem]:
    vocabulary = Vocabulary(document.rules)
    for index, rule in document.kept():
        for mistake in check_rule(rule, vocabulary):
            path = ("rules", str(index), *mistake.path)
            yield document.problem(path, mistake.found, mistake.expected)


def _check_names(documents: list[_Document]) -> Iterator[ConfigProblem]:
    """Names that occur twice, and references, over all files: rules may refer to those of other files."""
    places: dict[str, tuple[_Document, str]] = {}
    rules: dict[str, Rule] = {}
    for document in documents:
        for index, rule in document.kept():
            if rule.name in places:
                path, expected = ("rules", str(index), "name"), "a name of its own"
                if places[rule.name][0].shipped:
                    expected += f"; `rules.exclude: [{rule.name}]` leaves the shipped rule out"
                yield document.problem(path, f"{rule.name} again", expected)
            places[rule.name] = (document, str(index))
            rules[rule.name] = rule
    for name, mistake in check_references(rules):
        document, index_text = places[name]
        yield document.problem(("rules", index_text, *mistake.path), mistake.found, mistake.expected)

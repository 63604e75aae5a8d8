"""The commands of the documentation are run: every fenced `sh` block of it, in order, page by page.

A page is one shell session in a copy of the files that it names, in a network of its own, where the default
ports are free.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from otel_bridge import catalog
from otel_bridge.settings import Settings, load
from tests.support.processes import ROOT, collector_binary

pytestmark = [pytest.mark.slow, pytest.mark.collector, pytest.mark.timeout(600)]

PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "alerts/runbook.md")),
        *(ROOT / folder / "README.md" for folder in ("collector-config", "deploy", "dashboards", "demo")),
    ]
)
FOLDERS = ("alerts", "collector-config", "dashboards", "deploy")
"""What pages name of this tree."""

NOT_HERE = {
    "pip install": "tests/integration/test_wheel.py installs the package in an empty environment",
    "python3 -m venv": "the same",
    "make demo": "tests/integration/test_demo.py runs it",
    "make test": "this is part of it",
    "make dashboards": "tests/unit/dashboards/test_lint.py holds the generated files to their sources",
    "docker build": "there is no container engine in CI; the Containerfile is not built by a test",
    "kubectl": "there is no cluster; tests/unit/test_deploy.py renders and validates what would be applied",
    "install -D": "it changes the machine; tests/unit/test_deploy.py verifies the unit",
    "systemctl": "the same",
}
"""Commands that are not run, by their beginning, each with the reason."""
SERVES = ("otel-bridge run", "otelcol --config")
"""Commands that serve until they are stopped: a reader has a terminal for each, the test the background."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        line: where it begins, for messages.
        text: what is in it.
    """

    line: int
    text: str


def blocks(page: str, language: str) -> list[Block]:
    """The fenced blocks of a language."""
    found, begin, kind = [], 0, ""
    lines = page.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if not begin:
            begin, kind = number, line.removeprefix("```").strip()
        else:
            if kind == language:
                found.append(Block(begin + 1, "\n".join(lines[begin : number - 1])))
            begin = 0
    assert not begin, f"a block that begins in line {begin} does not end"
    return found


def commands(block: str) -> list[str]:
    """A block's commands: continued lines, texts over several lines, here-documents and loops are one."""
    found: list[str] = []
    pending = ""
    for line in block.splitlines():
        pending += line + "\n"
        parsed = subprocess.run(["bash", "-n"], input=pending, capture_output=True, text=True, check=False)
        if parsed.returncode or "here-document" in parsed.stderr or line.endswith("\\"):
            continue
        if pending.strip() and not pending.lstrip().startswith("#"):
            found.append(pending.rstrip())
        pending = ""
    assert not pending, f"not a whole command: {pending}"
    return found


def reason_not_to_run(command: str) -> str | None:
    """Why a command is not run; None: it is."""
    return next((why for start, why in NOT_HERE.items() if command.startswith(start)), None)


def script(page: str) -> str:
    """A page as one session; it stops at the first command that fails, and says which one that was.

    Empty where the page has none for this machine.
    """
    lines: list[str] = []
    for block in blocks(page, "sh"):
        for command in commands(block.text):
            if reason_not_to_run(command) is not None:
                continue
            serves = command.startswith(SERVES) and not command.split("#")[0].rstrip().endswith("&")
            lines += [
                f"echo >&2 'line {block.line}: '{_quoted(command)}",
                f"{command} &" if serves else command,
                "must $?",  # the shell goes on where the first of `a && b` fails, or `!` negates a success
            ]
    return "\n".join([*_BEGINNING, *lines, ""]) if lines else ""


_BEGINNING = ("set -euo pipefail", 'must() { if (($1)); then echo >&2 "ended with $1"; exit $1; fi; }')


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def run(text: str, directory: Path, tools: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a network of its own; whatever it left running ends with it."""
    own_network = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*own_network, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a network namespace: root, or unprivileged user namespaces")
    up = "ip link set lo up; exec bash session.sh"
    (directory / "session.sh").write_text(text)
    home = directory / "home"
    home.mkdir()
    environment = {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": f"{tools}:{os.environ['PATH']}:/usr/sbin:/sbin",
        # The machine is everybody's: what pages do is tried without probes. tests/kernel has them.
        "OTEL_BRIDGE__KERNEL__MODE": "off",
        "OTEL_BRIDGE__STORAGE__DIRECTORY": str(directory / "storage"),
    }
    with (directory / "output.log").open("w+") as output:
        child = subprocess.Popen(
            [*own_network, "bash", "-c", up],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            child.wait(500)
        finally:
            with suppress(ProcessLookupError):  # nothing was left
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        output.seek(0)
        return subprocess.CompletedProcess(text, child.returncode, output.read())


@pytest.fixture
def tools(tmp_path):
    """The commands that a reader of the pages has: the bridge's, and the Collector's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "otelcol").symlink_to(collector_binary())
    (folder / "otel-bridge").symlink_to(Path(sys.executable).parent / "otel-bridge")
    return folder


@pytest.fixture
def checkout(tmp_path):
    """The tree's files that pages name, to be read and written."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page, checkout, tools):
    """Each ends with 0, in the order of the page."""
    text = script(page.read_text())
    if not text:
        return
    inside = checkout / page.parent.relative_to(ROOT) if page.name == "README.md" else checkout
    done = run(text, inside if inside != checkout / "." else checkout, tools)
    assert done.returncode == 0, done.stdout[-6000:]


def test_a_command_that_is_unknown_or_wrong_fails(checkout, tools):
    """The test can fail: a program that nobody has, an option that is none, a server that ends."""
    for command in (
        "frobnicate --now",
        "otel-bridge check --nonsense",
        "false && true",
        "! true",
        "true | false",
    ):
        page = f"# Page\n\n```sh\n{command}\n```\n"
        done = run(script(page), checkout, tools)
        assert done.returncode != 0, command
        assert "line 4" in done.stdout
        shutil.rmtree(checkout / "home")


def test_each_reason_not_to_run_a_command_is_of_some_page():
    """No exception outlives its command, and few commands are exceptions."""
    found = [
        command
        for page in PAGES
        for block in blocks(page.read_text(), "sh")
        for command in commands(block.text)
    ]
    left = [command for command in found if reason_not_to_run(command) is not None]
    assert {start for start in NOT_HERE if not any(command.startswith(start) for command in left)} == set()
    assert len(found) - len(left) > 40


def test_shell_blocks_are_marked_as_such():
    """A block of another name would not be run."""
    for page in PAGES:
        marks = re.findall(r"^```(\w+)", page.read_text(), re.MULTILINE)
        assert not {"bash", "shell", "console", "zsh"} & set(marks), page


BRIDGE_FILES = [
    (page, block)
    for page in PAGES
    for block in blocks(page.read_text(), "yaml")
    if block.text.startswith("# bridge.yaml")
]


@pytest.mark.parametrize(("page", "block"), BRIDGE_FILES, ids=lambda one: getattr(one, "name", None))
def test_configurations_of_the_bridge_are_good(page, block, tmp_path):
    """A block that begins with `# bridge.yaml` is one."""
    file = tmp_path / "bridge.yaml"
    file.write_text(block.text)
    load(file, environment={})


def test_settings_that_pages_name_exist():
    """A dotted path in backticks that begins like a setting leads to one, or to a part of one."""
    roots = tuple(Settings.model_fields)
    attributes = {one.key for one in vars(catalog).values() if isinstance(one, catalog.Attribute)}
    known = _paths(yaml.safe_load(Settings().model_dump_json())) | attributes
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in PAGES
        for path in re.findall(rf"`((?:{'|'.join(roots)})\.[a-z_.*]+)`", page.read_text())
        if "*" not in path and not any(_is_part(path, one) for one in known)
    ]
    assert missing == []


def _paths(value: object, before: str = "") -> set[str]:
    """Every setting; what is null, or a list, by default may have more below it: `*`."""
    if value is None or isinstance(value, list):
        return {before, f"{before}.*"}
    if not isinstance(value, dict) or not value:
        return {before}
    return {path for key, one in value.items() for path in _paths(one, f"{before}.{key}" if before else key)}


def _is_part(path: str, known: str) -> bool:
    return known == path or known.startswith(path + ".") or fnmatch.fnmatchcase(path, known)


def test_links_between_pages_lead_somewhere():
    """Files and headings, of every page of the tree."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    dead = []
    for page in [ROOT / name for name in listed.stdout.splitlines()] + PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            path, _, heading = target.partition("#")
            file = page.parent / path if path else page
            if "://" in target:
                continue
            if not file.exists() or (heading and heading not in _headings(file)):
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert dead == []


def _headings(page: Path) -> set[str]:
    """As they are linked to: small letters, words joined by hyphens, without marks."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}

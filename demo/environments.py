"""Virtual environments for what cannot share one: the engine, and each client with the versions that work."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.errors import DemoError
from demo.places import ROOT, cache

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """One virtual environment, named after its requirements so that a change of them makes another.

    Attributes:
        name: for people and for the folder.
        requirements: a file with every version pinned.
    """

    name: str
    requirements: Path

    @property
    def directory(self) -> Path:
        """Where it is, or will be."""
        version = "{}.{}".format(*sys.version_info)
        digest = hashlib.sha256(self.requirements.read_bytes() + version.encode()).hexdigest()[:12]
        return cache() / "environments" / f"{self.name}-{digest}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    @property
    def ready(self) -> bool:
        """Whether it was made to the end."""
        return self._done.exists()

    @property
    def _done(self) -> Path:
        return self.directory / ".done"

    def make(self) -> None:
        """Make it unless it is there; of two at once the second waits.

        Raises:
            DemoError: a package could not be installed.
        """
        parent = self.directory.parent
        parent.mkdir(parents=True, exist_ok=True)
        with (parent / f"{self.directory.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.ready:
                return
            shutil.rmtree(self.directory, ignore_errors=True)
            venv.create(self.directory, symlinks=True)
            self._install()
            self._done.touch()

    def _install(self) -> None:
        log = self.directory.with_suffix(".log")
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.directory),
            "--disable-pip-version-check",
        ]
        command += ["install", "--no-deps", "--requirement", str(self.requirements)]
        with log.open("w") as out:
            ended = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
        if ended.returncode != 0:
            raise DemoError(
                f"the packages of {self.requirements.relative_to(ROOT)} could not be installed",
                "look whether pip reaches its index (pip config list), then run this again; what was "
                "downloaded is kept",
                log,
            )


ENGINE = Environment("engine", ROOT / "demo/engine/requirements.txt")
OPENAI_V2 = Environment("openai-v2", ROOT / "demo/clients/openai-v2.txt")
OPENINFERENCE = Environment("openinference", ROOT / "demo/clients/openinference.txt")
OPENLLMETRY = Environment("openllmetry", ROOT / "demo/clients/openllmetry.txt")
ALL = (ENGINE, OPENAI_V2, OPENINFERENCE, OPENLLMETRY)

OF_CLIENT = {
    "openai-v2": OPENAI_V2,
    "openai-v2-latest": OPENAI_V2,
    "openinference": OPENINFERENCE,
    "openllmetry": OPENLLMETRY,
}
"""The environment of each client in demo/clients/instrumentations.py."""

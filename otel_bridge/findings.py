"""What `otel-bridge doctor` finds, whoever looked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


class Verdict(Enum):
    """How it stands with one thing."""

    OK = "ok"
    PARTIAL = "partial"
    MISSING = "missing"
    OPTIONAL = "optional"  # missing, and only some things want it
    OFF = "off"  # by configuration


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        subject: what was looked at.
        verdict: how it stands.
        found: what there is.
        needed: what there should be, and what for.
        mend: the command that mends it; empty when nothing needs mending.
    """

    subject: str
    verdict: Verdict
    found: str
    needed: str
    mend: str = ""

    def as_dict(self) -> dict[str, str]:
        """For `--json`."""
        return {**asdict(self), "verdict": self.verdict.value}

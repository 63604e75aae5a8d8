"""What every action is held to: its allow-list, its dry run, its rate limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_bridge.allowance import Allowance
from otel_bridge.breakers import State
from otel_bridge.targets import matches

if TYPE_CHECKING:
    from otel_bridge.breakers import Change
    from otel_bridge.control.actions.limits import ActionConfig

_STRICTNESS = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


class Guard:
    """Says what may be done with a change.

    Only what makes traffic stricter is limited. What makes it looser always goes, or a limit would leave a
    gate shut.
    """

    def __init__(self, config: ActionConfig) -> None:
        self._config = config
        limit = config.rate_limit
        self._bucket = Allowance(limit.changes / limit.interval, limit.changes)
        self._limited: set[str] = set()

    def judge(self, change: Change, now: float) -> str | None:
        """What is to be done ("go", "dry_run", "limited"); None: the change is none of its business."""
        target = change.target
        if not matches(target, self._config.targets):
            return None
        if change.renewal:
            if target in self._limited:
                return None
        elif _STRICTNESS[change.state] > _STRICTNESS[change.before]:
            if not self._bucket.take(now):
                self._limited.add(target)
                return "limited"
            self._limited.discard(target)
        else:
            self._limited.discard(target)
        return "dry_run" if self._config.dry_run else "go"

"""The state of one alert: from its condition's truth at times to when it begins and ends to fire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.rules.language import Rule


@dataclass(frozen=True, slots=True)
class Holding:
    """How long a rule must hold and goes on, nanoseconds."""

    before: int
    after: int

    @classmethod
    def of(cls, rule: Rule) -> Holding:
        """From the rule's `for` and `keep_firing_for`."""
        return cls(round(rule.for_ * 1e9), round(rule.keep_firing_for * 1e9))


class Alert:
    """One rule in one group.

    Attributes:
        active: whether it fires.
        began: when it last began to.
        since: while the condition holds, since when; None while it does not.
        newest: the latest time it was looked at.
        held: the latest time the condition held, or was not known to have ended while it fired.
    """

    __slots__ = ("_went_on", "active", "began", "held", "newest", "since")

    def __init__(self) -> None:
        self.active = False
        self.began = 0
        self.since: int | None = None
        self.newest = -1
        self.held = -1
        self._went_on = False

    def see(self, time: int, truth: bool | None, holding: Holding) -> bool:  # noqa: FBT001 (the truth itself)
        """Take in the condition's truth at a time; of a time before the newest only that it held counts.

        Returns:
            Whether the alert began or ended to fire.
        """
        late = time < self.newest
        self.newest = max(self.newest, time)
        if truth:
            return self._holds(time, holding, late=late)
        if late:
            return False
        if self._went_on:
            # It is looked at whenever it changes, so it went on until now.
            self.held = max(self.held, time - 1)
        self.since = None
        self._went_on = truth is None and self.active
        if not self.active:
            return False
        if truth is None:
            self.held = time
            return False
        if time - self.held < holding.after:
            return False
        self.active = False
        return True

    def _holds(self, time: int, holding: Holding, *, late: bool) -> bool:
        if late and holding.before:
            return False
        self.held = max(self.held, time)
        if not late:
            self._went_on = True
            self.since = time if self.since is None else self.since
        begins = not self.active and (late or time - (self.since or 0) >= holding.before)
        if begins:
            self.active, self.began = True, time
        return begins

    def due(self, holding: Holding) -> int | None:
        """When its state may change though the condition does not; None when it cannot."""
        if self.active:
            return self.held + holding.after if self.since is None and holding.after else None
        return self.since + holding.before if self.since is not None else None

    def shift(self, by: int) -> None:
        """Move to a clock that was set; what was pending begins anew."""
        self.since = None
        self.newest = -1
        self.held += by
        self.began += by

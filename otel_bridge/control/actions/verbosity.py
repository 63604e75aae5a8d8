"""An action that has the bridge tell more while a breaker is not closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_bridge.breakers import State
from otel_bridge.verbosity import Wish

if TYPE_CHECKING:
    from otel_bridge.breakers import Change
    from otel_bridge.control.actions.config import VerbosityConfig
    from otel_bridge.verbosity import Verbosity


class VerbosityAction:
    """A breakers.Action; it ends with the process, and needs no lease."""

    def __init__(self, name: str, config: VerbosityConfig, verbosity: Verbosity) -> None:
        self.name = name
        self._wish = Wish(config.sampling_rate or 0.0, config.log_level)
        self._verbosity = verbosity

    async def apply(self, change: Change) -> None:
        """Tell more from the trip on, until the breaker is closed."""
        if change.state is State.CLOSED:
            self._verbosity.release(self.name, change.target)
        else:
            self._verbosity.want(self.name, change.target, self._wish)

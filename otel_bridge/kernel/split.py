"""Where the reader's events go: to the bridge, to discovery, or first to who names their stacks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from otel_bridge.kernel.probes import process
from otel_bridge.kernel.stacks import ADDRESSES

if TYPE_CHECKING:
    from otel_bridge.events import KernelEvents, KernelEventSink
    from otel_bridge.kernel.discovery import Discovery
    from otel_bridge.kernel.stacks import StackNaming


class Split:
    """All events go to the bridge, but those of processes, which discovery tells of in its own words.

    Those with a stack go by way of who names its functions.
    """

    def __init__(self, sink: KernelEventSink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self.discovery: Discovery | None = None
        self.stacks: StackNaming | None = None

    def take(self, events: KernelEvents) -> None:
        """See `KernelEventSink`."""
        if events.probe == process.PROBE.name:
            discovery = self.discovery  # whoever stops takes it away at any time
            if discovery is not None:
                discovery.announce(events.records)
        elif self.stacks is not None and ADDRESSES in (events.records.dtype.names or ()):
            self.stacks.take(events)
        else:
            self.hand_on(events)

    def hand_on(self, events: KernelEvents) -> None:
        """To the bridge, one at a time."""
        with self._lock:
            self._sink.take(events)

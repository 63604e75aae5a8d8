"""Xid errors by NVML's event set, in a thread that waits for them."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

import structlog

from otel_bridge.gpu.nvml import NvmlError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_bridge.gpu.device import Device
    from otel_bridge.gpu.nvml import Nvml

log = structlog.get_logger(__name__)

_WAIT = 0.5
"""Seconds: so late are a stop and a change of cards seen, and so long it rests when the driver refuses."""


class XidWatch:
    """Waits for Xid errors of some cards, while the library is open.

    One card that is lost spoils the wait for all: the set is made anew then, without it.

    Args:
        nvml: the open library; must stay open until `stop` has said that the thread is gone.
        tell: told of the UUID and the number, in the watch's thread.
    """

    def __init__(self, nvml: Nvml, tell: Callable[[str, int], None]) -> None:
        self._nvml = nvml
        self._tell = tell
        self._cards: Sequence[Device] = ()
        self._said: set[str] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-xid", daemon=True)

    def follow(self, cards: Sequence[Device]) -> None:
        """From now on errors of these cards; to be said again whenever they may have changed."""
        if cards != self._cards:
            self._cards = cards

    @property
    def is_waiting(self) -> bool:
        """Whether the thread lives."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def stop(self, patience: float) -> bool:
        """End the thread; False while it is still in a call of the driver after so many seconds."""
        self._stopping.set()
        if self.is_waiting:
            self._thread.join(patience)
        return not self.is_waiting

    def _run(self) -> None:
        while not self._stopping.is_set():
            cards = self._cards
            try:
                self._wait_for(cards)
            except NvmlError as error:
                self._say("Xid errors are not seen", reason=str(error))
                self._stopping.wait(_WAIT)
            else:
                self._said.clear()

    def _wait_for(self, cards: Sequence[Device]) -> None:
        """Until the cards have changed.

        Raises:
            NvmlError: the driver refuses, or one of the cards is lost.
        """
        api = self._nvml.api
        events = self._nvml.call(api.nvmlEventSetCreate)
        try:
            uuids = self._register(cards, events)
            while self._cards is cards and not self._stopping.is_set():
                if not uuids:
                    self._stopping.wait(_WAIT)
                elif (event := self._next(events)) is not None:
                    uuid = uuids.get(_address(event.device), "")
                    if uuid and event.eventType == api.nvmlEventTypeXidCriticalError:
                        self._tell(uuid, int(event.eventData))
        finally:
            try:
                self._nvml.call(api.nvmlEventSetFree, events)
            except NvmlError as error:
                log.debug("an event set is not given back", reason=str(error))

    def _register(self, cards: Sequence[Device], events: Any) -> dict[int, str]:
        api = self._nvml.api
        uuids = {}
        for card in cards:
            try:
                self._nvml.call(
                    api.nvmlDeviceRegisterEvents, card.handle, api.nvmlEventTypeXidCriticalError, events
                )
            except NvmlError as error:
                self._say("a GPU tells of no Xid errors", gpu_uuid=card.uuid, reason=str(error))
            else:
                uuids[_address(card.handle)] = card.uuid
        return uuids

    def _next(self, events: Any) -> Any:
        """The next event; None when there was none for a while."""
        api = self._nvml.api
        try:
            return self._nvml.call(api.nvmlEventSetWait_v2, events, round(_WAIT * 1000))
        except NvmlError as error:
            if error.code == api.NVML_ERROR_TIMEOUT:
                return None
            raise

    def _say(self, event: str, **what: str) -> None:
        """Once, until all is well again."""
        said = event + repr(what)
        if said not in self._said:
            self._said.add(said)
            log.warning(event, **what)


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

"""Xid errors by NVML's event set, in a thread that waits for them."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

import structlog

from otel_bridge.gpu.nvml import NvmlError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_bridge.gpu.device import Device
    from otel_bridge.gpu.nvml import Nvml

log = structlog.get_logger(__name__)

_WAIT_MS = 500
"""The longest that stopping waits."""


class XidWatch:
    """Waits for Xid errors of some cards, while the library is open.

    Args:
        nvml: the open library; must stay open until `stop` has returned.
        cards: whose errors.
        tell: told of the UUID and the number, in the watch's thread.
    """

    def __init__(self, nvml: Nvml, cards: Iterable[Device], tell: Callable[[str, int], None]) -> None:
        self._nvml = nvml
        self._tell = tell
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-xid", daemon=True)
        api = nvml.api
        self._uuids: dict[int, str] = {}
        self._set = nvml.call(api.nvmlEventSetCreate)
        for card in cards:
            try:
                nvml.call(
                    api.nvmlDeviceRegisterEvents, card.handle, api.nvmlEventTypeXidCriticalError, self._set
                )
            except NvmlError as error:
                log.info("a GPU tells of no Xid errors", gpu_uuid=card.uuid, reason=str(error))
            else:
                self._uuids[_address(card.handle)] = card.uuid

    def start(self) -> None:
        """Begin to wait."""
        if self._uuids:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self._nvml.call(self._nvml.api.nvmlEventSetFree, self._set)
        except NvmlError as error:
            log.debug("an event set is not given back", reason=str(error))

    def _run(self) -> None:
        api = self._nvml.api
        while not self._stopping.is_set():
            try:
                event = self._nvml.call(api.nvmlEventSetWait_v2, self._set, _WAIT_MS)
            except NvmlError as error:
                if error.code == api.NVML_ERROR_TIMEOUT:
                    continue
                log.warning("Xid errors are not seen until the driver is loaded anew", reason=str(error))
                return
            uuid = self._uuids.get(_address(event.device), "")
            if uuid and event.eventType == api.nvmlEventTypeXidCriticalError:
                self._tell(uuid, int(event.eventData))


def _address(handle: object) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

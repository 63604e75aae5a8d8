"""All GPUs and MIG instances of this machine: found, kept, lost, found again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from otel_bridge.gpu.device import Device, GpuLostError
from otel_bridge.gpu.gpm import Gpm
from otel_bridge.gpu.nvml import NvmlError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_bridge.gpu.absent import Absences
    from otel_bridge.gpu.clock import ReadingClock
    from otel_bridge.gpu.nvml import Nvml
    from otel_bridge.readings import Reading

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Member:
    """A GPU or MIG instance.

    Attributes:
        device: reads it.
        gpm: reads its activity.
        slices: of the card, that a MIG instance has; of a card with MIG on, all of them; 0: no MIG.
        lost: why it answers no more; empty while it does.
        activity: how busy a MIG instance was at last.
        used: bytes of its memory at last; None: absent.
    """

    device: Device
    gpm: Gpm
    slices: int = 0
    lost: str = ""
    activity: Reading | None = None
    used: int | None = None

    @property
    def uuid(self) -> str:
        """Its UUID."""
        return self.device.uuid


class Fleet:
    """Holds NVML open and knows its devices; used by one thread.

    Attributes:
        members: by UUID, cards before their instances.
    """

    def __init__(self, nvml: Nvml, absences: Absences, clock: ReadingClock) -> None:
        self._nvml = nvml
        self._absences = absences
        self._clock = clock
        self._is_open = False
        self._said: set[tuple[int, str]] = set()
        self.members: dict[str, Member] = {}

    @property
    def is_open(self) -> bool:
        """Whether the library is loaded."""
        return self._is_open

    @property
    def cards(self) -> list[Device]:
        """Those that answer, and are no MIG instances."""
        members = self.members.values()
        return [one.device for one in members if not (one.lost or one.device.is_instance)]

    def open(self) -> None:
        """Load the library and find the devices.

        Raises:
            NvmlError: there is no driver, or it refuses.
        """
        self._nvml.open()
        self._is_open = True
        try:
            self.look()
        except NvmlError:
            self.close()
            raise

    def close(self) -> None:
        """Unload; what was found is forgotten."""
        if not self._is_open:
            return
        self._is_open = False
        for member in self.members.values():
            member.gpm.close()
        self.members.clear()
        self._nvml.close()

    def look(self) -> None:
        """Find devices that are new or came back; those that answer keep what is known of them.

        Raises:
            NvmlError: not even their number can be had.
        """
        api = self._nvml.api
        found: dict[str, Member] = {}
        for index in range(self._nvml.call(api.nvmlDeviceGetCount)):
            try:
                for member in self._of_card(index):
                    found[member.uuid] = member
            except (NvmlError, GpuLostError) as error:
                if (index, error.reason) not in self._said:
                    self._said.add((index, error.reason))
                    log.warning("a GPU does not answer", index=index, reason=str(error))
        for uuid, member in self.members.items():
            if uuid in found:
                continue
            # A card that is gone is lost; an instance that is gone was taken apart.
            if not member.device.is_instance:
                member.lost = member.lost or "gone"
                found[uuid] = member
            else:
                member.gpm.close()
        self.members = found

    def lose(self, member: Member, reason: str) -> None:
        """It answers no more."""
        member.lost = reason
        log.warning("a GPU is lost", gpu_uuid=member.uuid, reason=reason)

    def _of_card(self, index: int) -> Iterator[Member]:
        call, api = self._nvml.call, self._nvml.api
        handle = call(api.nvmlDeviceGetHandleByIndex, index)
        uuid = call(api.nvmlDeviceGetUUID, handle)
        card = self._member(handle, uuid, card=handle)
        most = self._mig_slices(card.device)
        card.slices = most
        yield card
        for number in range(most):
            try:
                instance = call(api.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
            except NvmlError:  # fewer than the most there may be
                continue
            yield self._instance(card, instance, handle)

    def _mig_slices(self, card: Device) -> int:
        api = self._nvml.api
        mode = card.ask("mig", api.nvmlDeviceGetMigMode, card.handle)
        if not mode or mode[0] != api.NVML_DEVICE_MIG_ENABLE:
            return 0
        return card.ask("mig", api.nvmlDeviceGetMaxMigDeviceCount, card.handle) or 0

    def _instance(self, card: Member, handle: Any, card_handle: Any) -> Member:
        call, api = self._nvml.call, self._nvml.api
        uuid = call(api.nvmlDeviceGetUUID, handle)
        number = call(api.nvmlDeviceGetGpuInstanceId, handle)
        member = self._member(handle, uuid, card=card_handle, parent=card.uuid, instance=number)
        attributes = member.device.ask("mig", api.nvmlDeviceGetAttributes_v2, handle)
        member.slices = attributes.gpuInstanceSliceCount if attributes is not None else 0
        return member

    def _member(
        self, handle: Any, uuid: str, *, card: Any, parent: str = "", instance: int | None = None
    ) -> Member:
        known = self.members.get(uuid)
        if known is not None and not known.lost:
            return known
        if known is not None:
            known.gpm.close()
        try:
            name = self._nvml.call(self._nvml.api.nvmlDeviceGetName, handle)
        except NvmlError:
            name = ""
        device = Device(
            self._nvml,
            handle,
            uuid,
            name=name,
            parent=parent,
            absences=self._absences,
            clock=self._clock,
        )
        device.check()
        return Member(device, Gpm(self._nvml, device, card, instance, self._absences))

"""All destinations as one exporter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from otel_bridge.errors import QueueFullError, ShuttingDownError
from otel_bridge.exporters.otlp.config import GrpcExporterConfig
from otel_bridge.exporters.otlp.destination import Destination
from otel_bridge.exporters.otlp.disk import DiskQueue
from otel_bridge.exporters.otlp.grpc import GrpcSender
from otel_bridge.exporters.otlp.http import HttpSender
from otel_bridge.exporters.otlp.queue import Item, Ticket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_bridge.contracts import Clock, Codec
    from otel_bridge.exporters.otlp.answer import Sender
    from otel_bridge.exporters.otlp.config import HttpExporterConfig, StorageConfig
    from otel_bridge.model import Signal
    from otel_bridge.telemetry import Telemetry


class OtlpExporter:
    """A contracts.Exporter and contracts.Component over any number of destinations."""

    def __init__(self, destinations: Sequence[Destination], clock: Clock) -> None:
        self._destinations = tuple(destinations)
        self._clock = clock
        self._stopping = False

    async def start(self) -> None:
        """Start every destination; none needs to be reachable.

        Raises:
            StartError: a TLS file cannot be read.
        """
        for destination in self._destinations:
            await destination.start()

    async def stop(self, deadline: float) -> None:
        """Take nothing new, deliver what is in memory, put the rest on disk."""
        self._stopping = True
        await asyncio.gather(*(destination.stop(deadline) for destination in self._destinations))

    def reserve(self, size: int) -> ExporterReservation:
        """Hold room for a request of `size` bytes in every destination's queue.

        Raises:
            QueueFullError: a destination has room neither in memory nor on disk.
            ShuttingDownError: the exporter stops.
        """
        if self._stopping:
            raise ShuttingDownError("the service is shutting down", retry_after=1.0)
        for destination in self._destinations:
            wait = destination.wait_for_room(size)
            if wait is not None:
                raise QueueFullError(
                    f"exporter {destination.name}: no room for {size} bytes", retry_after=wait
                )
        for destination in self._destinations:
            destination.reserve(size)
        return ExporterReservation(self._destinations, size, self._clock)


class ExporterReservation:
    """Room in every destination's queue (contracts.Reservation)."""

    __slots__ = ("_clock", "_destinations", "_open", "_size")

    def __init__(self, destinations: tuple[Destination, ...], size: int, clock: Clock) -> None:
        self._destinations = destinations
        self._size = size
        self._clock = clock
        self._open = True

    async def send(self, signal: Signal, payload: bytes, items: int) -> None:
        """Hand the request over; returns when each destination has delivered it or put it on disk.

        When the caller is cancelled, the request goes on to every destination all the same.

        Raises:
            RetryableError: a destination could do neither and has let go of it.
        """
        self.release()
        if not payload:
            return
        ticket = Ticket(len(self._destinations))
        now = self._clock.time_ns()
        for destination in self._destinations:
            destination.submit(Item(signal, payload, items, now, ticket=ticket))
        error = await ticket.settled
        if error is not None:
            raise error

    def release(self) -> None:
        """Give the room back unused; harmless after `send`."""
        if self._open:
            self._open = False
            for destination in self._destinations:
                destination.unreserve(self._size)


def build(
    exporters: Mapping[str, GrpcExporterConfig | HttpExporterConfig],
    storage: StorageConfig | None,
    *,
    codec: Codec,
    clock: Clock,
    telemetry: Telemetry,
) -> OtlpExporter:
    """The exporter of a configuration; `codec` takes oversize trace requests apart."""
    destinations = []
    for name, config in exporters.items():
        sender: Sender = (
            GrpcSender(config) if isinstance(config, GrpcExporterConfig) else HttpSender(config, clock)
        )
        disk = DiskQueue(storage.directory / name.replace("/", "_"), storage, clock) if storage else None
        destinations.append(
            Destination(name, config, sender, codec=codec, clock=clock, telemetry=telemetry, disk=disk)
        )
    return OtlpExporter(destinations, clock)

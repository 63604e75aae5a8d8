"""Which files the programs of a probe go to: by the file's name, or by a function that it defines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import structlog

from otel_bridge.elf.file import ElfFile
from otel_bridge.elf.loaded import ElfError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_bridge.kernel.discovery import MappedFile
    from otel_bridge.kernel.probes.base import Uprobe

log = structlog.get_logger(__name__)


class FunctionPlace:
    """A `discovery.Place`.

    Args:
        uprobes: what to attach.
        library: pattern of file names.
        function: of other files, those that define it; empty for none.
        attach: does it; returns what detaches, None when it was refused.
    """

    def __init__(
        self,
        uprobes: tuple[Uprobe, ...],
        library: str,
        function: str,
        attach: Callable[[tuple[Uprobe, ...], MappedFile], Callable[[], None] | None],
    ) -> None:
        self._uprobes = uprobes
        self._library = re.compile(library)
        self._function = function.encode()
        self._attach = attach

    def attach(self, file: MappedFile) -> Callable[[], None] | None:
        """See `discovery.Place`."""
        if self._library.fullmatch(file.name) or (self._function and defines(file, self._function)):
            uprobes = self._there(file)
            return self._attach(uprobes, file) if uprobes else None
        return None

    def _there(self, file: MappedFile) -> tuple[Uprobe, ...]:
        """Without the functions that a file need not have, and has not, or that are not what they should be.

        Told by its own symbols: libbpf 1.1 takes those that a file asks of another one for its own.
        """
        optional = {one.symbol.encode() for one in self._uprobes if one.symbol and not one.required}
        known = {one.symbol.encode(): one.begins for one in self._uprobes if one.begins}
        try:
            with ElfFile(file.open_path) as elf:
                missing = optional - elf.defined(optional)
                other = {name for name, begins in known.items() if not elf.begins(name, begins)}
        except (OSError, ElfError):
            return self._uprobes  # whoever attaches says what is wrong with it
        for name in other:
            log.info("a function is of another version", path=file.path, function=name.decode())
        missing |= other
        return tuple(one for one in self._uprobes if one.symbol.encode() not in missing)


def defines(file: MappedFile, function: bytes) -> bool:
    """Whether a function of this name is in a file; False for one that cannot be read."""
    try:
        with ElfFile(file.open_path) as elf:
            return elf.defines(function)
    except (OSError, ElfError) as error:
        log.debug("a mapped file was not searched", path=file.path, error=str(error))
        return False

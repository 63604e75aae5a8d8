"""Which files the programs of a probe go to: by the file's name, or by a function that it defines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import structlog

from otel_bridge.kernel.elf_file import ElfFile
from otel_bridge.kernel.loaded_elf import ElfError

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
            return self._attach(self._uprobes, file)
        return None


def defines(file: MappedFile, function: bytes) -> bool:
    """Whether a function of this name is in a file; False for one that cannot be read."""
    try:
        with ElfFile(file.open_path) as elf:
            return elf.defines(function)
    except (OSError, ElfError) as error:
        log.debug("a mapped file was not searched", path=file.path, error=str(error))
        return False

"""NVML through NVIDIA's own binding: loaded, unloaded, and its errors told apart."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from _ctypes import dlclose
from typing import TYPE_CHECKING, Any

import pynvml

from otel_bridge.errors import BridgeError

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_")
}

SETTLED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    }
)
"""What stays as it is until the driver is loaded anew: asking again is a waste."""

LOST = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)
"""What says of every later call as well that it fails."""


class NvmlError(BridgeError):
    """A call of NVML failed.

    Attributes:
        code: NVML's.
        reason: the same in a word ("not_supported"), for metrics.
    """

    def __init__(self, code: int, call: str = "") -> None:
        self.code = code
        self.reason = reason_of(code)
        super().__init__(f"NVML{f' ({call})' if call else ''}: {self.reason.replace('_', ' ')} ({code})")


def reason_of(code: int) -> str:
    """An error code in a word."""
    return _NAMES.get(code, f"error_{code}")


class Nvml:
    """The driver's library, from `open` to `close`.

    The binding keeps the library for the life of the process. A library whose driver was replaced answers
    nothing but errors until it is loaded again, so closing unloads it. One at a time in a process.

    Args:
        path: of libnvidia-ml.so.1; empty: as the dynamic loader finds it.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path
        self.api: Any = pynvml

    def open(self) -> None:
        """Load and initialise.

        Raises:
            NvmlError: there is no driver, or it refuses.
        """
        if self._path:
            try:
                self.api.nvmlLib = ctypes.CDLL(self._path)
            except OSError as error:
                raise NvmlError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, self._path) from error
        try:
            self.call(self.api.nvmlInit)
        except NvmlError:
            self._unload()
            raise

    def close(self) -> None:
        """Shut down and unload; nobody may be in a call."""
        with contextlib.suppress(NvmlError):  # a driver that is gone cannot be told either
            self.call(self.api.nvmlShutdown)
        self._unload()

    def _unload(self) -> None:
        library = self.api.nvmlLib
        # Most nodes have no driver, and are asked for one again and again; reading the binding takes 40 ms.
        if library is None:
            return
        # Forgets the library and the functions it found there.
        self.api = importlib.reload(pynvml)
        dlclose(library._handle)  # noqa: SLF001 (ctypes has no other way to unload)

    def prepared(self, name: str, *args: Any) -> Callable[[], None]:
        """A call of the library with arguments that stay the same, for what is asked ten times a second.

        The binding makes its structures anew each time and asks for the function by name: half of the call.
        What fails is raised as the binding does.
        """
        function = self.api._nvmlGetFunctionPointer(name)  # noqa: SLF001 (the binding's own way to it)
        check = self.api._nvmlCheckReturn  # noqa: SLF001

        def call() -> None:
            code = function(*args)
            if code:
                check(code)

        return call

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """A call of the binding.

        Raises:
            NvmlError: with NVML's code.
        """
        try:
            return function(*args)
        except self.api.NVMLError as error:
            raise NvmlError(error.value, function.__name__) from error

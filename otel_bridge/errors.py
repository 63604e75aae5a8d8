"""The failures of the bridge, told apart by what a caller can do about them.

An error is permanent or retryable by its type. The mapping to gRPC and HTTP status codes is in
`receivers/otlp/status.py` and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass


class BridgeError(Exception):
    """Anything the bridge raises on purpose; its text is fit to be shown to a person."""


class PermanentError(BridgeError):
    """The same input would fail again: the sender must not retry."""


class RetryableError(BridgeError):
    """The same input may succeed later.

    Attributes:
        retry_after: seconds the sender should wait before the next try; None leaves it to the sender.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class MalformedRequestError(PermanentError):
    """The bytes are not the message they claim to be."""


class UnsupportedMediaTypeError(PermanentError):
    """A content type or a content encoding that is not spoken here."""


class RequestTooLargeError(PermanentError):
    """The request exceeds a limit of this service, after decompression."""


class UnauthenticatedError(PermanentError):
    """No credentials, or not the right ones."""


class QueueFullError(RetryableError):
    """There is no room for this request now, neither in memory nor on disk."""


class ShuttingDownError(RetryableError):
    """The service drains and takes nothing new."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing wrong with a configuration.

    Attributes:
        path: where, as a dotted key path ("receivers.otlp.protocols.grpc.endpoint").
        found: what stands there.
        expected: what is allowed there.
        hint: what to do about it; empty when `expected` says it all.
    """

    path: str
    found: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        """One line a person can act on."""
        line = f"{self.path or '(top level)'}: found {self.found}; expected {self.expected}"
        return f"{line}; {self.hint}" if self.hint else line


class ConfigError(BridgeError):
    """A configuration that cannot be used, with every problem in it."""

    def __init__(self, source: str, problems: list[ConfigProblem]) -> None:
        self.source = source
        self.problems = problems
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__("\n".join([f"{source}: {count}", *(f"  {problem}" for problem in problems)]))


class StartError(BridgeError):
    """The service cannot start; the text names the cause and the command that mends it."""

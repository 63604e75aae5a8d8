"""Certificates of the listeners, read again when their files change."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import grpc
import structlog

from otel_bridge.errors import StartError

if TYPE_CHECKING:
    from pathlib import Path

    from otel_bridge.listeners.config import TlsConfig

log = structlog.get_logger(__name__)

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_Identity = tuple[tuple[int, int, int], ...]


class Certificates:
    """The files of one listener.

    A set of files that cannot be used never replaces one that can: it is logged, and looked at again when
    it changes once more.
    """

    def __init__(self, config: TlsConfig, setting: str) -> None:
        """Read the files; `setting` is the key path of `tls`.

        Raises:
            StartError: a file cannot be read, or key and certificate do not belong together.
        """
        self._config = config
        try:
            self._seen = self._identity()
            self._context = self._make_context()
        except (OSError, ValueError) as error:
            files = ", ".join(str(file) for file in self._files())
            raise StartError(
                f"cannot use the certificate of {setting} ({files}): {_cause(error)}; expected PEM files, "
                "readable by this user, the key belonging to the certificate and not encrypted"
            ) from error

    def http_context(self) -> ssl.SSLContext:
        """For asyncio: each handshake uses the files as they are then."""
        front = self._make_context()

        def choose(connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
            self._refresh()
            connection.context = self._context

        front.sni_callback = choose
        return front

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For gRPC, with the same promise."""
        credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(),
            self._newer_grpc_configuration,  # type: ignore[arg-type]  # None says: as before
            require_client_authentication=self._config.client_ca_file is not None,
        )
        return credentials

    def _newer_grpc_configuration(self) -> grpc.ServerCertificateConfiguration | None:
        return self._grpc_configuration() if self._refresh() else None

    def _files(self) -> list[Path]:
        optional = [self._config.client_ca_file] if self._config.client_ca_file is not None else []
        return [self._config.cert_file, self._config.key_file, *optional]

    def _identity(self) -> _Identity:
        stats = [file.stat() for file in self._files()]
        return tuple((stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats)

    def _refresh(self) -> bool:
        """Whether newer files were taken."""
        try:
            seen = self._identity()
            if seen == self._seen:
                return False
            self._seen = seen
            self._context = self._make_context()
        except (OSError, ValueError) as error:
            log.warning(
                "certificate not read again; the old one stays",
                file=str(self._config.cert_file),
                error=_cause(error),
            )
            return False
        log.info("certificate read again", file=str(self._config.cert_file))
        return True

    def _make_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[self._config.min_version]
        context.load_cert_chain(self._config.cert_file, self._config.key_file, password=_refuse_password)
        if self._config.client_ca_file is not None:
            context.load_verify_locations(cafile=self._config.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _grpc_configuration(self) -> grpc.ServerCertificateConfiguration:
        client_ca = self._config.client_ca_file
        pair = self._config.key_file.read_bytes(), self._config.cert_file.read_bytes()
        return grpc.ssl_server_certificate_configuration(
            [pair], root_certificates=client_ca.read_bytes() if client_ca is not None else None
        )


def _refuse_password() -> str:
    """OpenSSL would else ask for the passphrase of an encrypted key on the terminal."""
    raise ValueError("the key is encrypted")


def _cause(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)

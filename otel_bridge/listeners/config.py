"""What users write about a listener's certificate and its visitors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsConfig(_Model):
    """The certificate of a listener, in PEM files; read again when they change on disk."""

    cert_file: Path = Field(description="The certificate, with any intermediate ones after it.")
    key_file: Path = Field(description="Its private key, not encrypted.")
    client_ca_file: Path | None = Field(
        None, description="Only clients with a certificate signed by one of these are let in (mTLS)."
    )
    min_version: Literal["1.2", "1.3"] = Field("1.2", description="The oldest TLS version spoken.")


class GrpcTlsConfig(TlsConfig):
    """The certificate of the gRPC listener."""

    min_version: Literal["1.2"] = Field(
        "1.2", description="The oldest TLS version spoken; grpcio cannot be told to refuse 1.2."
    )


class AuthConfig(_Model):
    """Who may send: any of these bearer tokens (`Authorization: Bearer TOKEN`)."""

    bearer_token_file: Path | None = Field(
        None, description="A file with one token a line; read again when it changes on disk."
    )
    bearer_tokens: tuple[Annotated[SecretStr, Field(min_length=1)], ...] = Field(
        (), description="The tokens themselves."
    )

    @model_validator(mode="after")
    def _some_token(self) -> Self:
        if self.bearer_token_file is None and not self.bearer_tokens:
            raise ValueError(
                "auth needs bearer_token_file or bearer_tokens; leave auth out to let everybody in"
            )
        return self

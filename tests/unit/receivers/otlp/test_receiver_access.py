"""Who is let in: TLS, client certificates, bearer tokens; and files that change while the receiver runs."""

from __future__ import annotations

import asyncio
import os
import ssl

import aiohttp
import grpc
import pytest
import trustme

from otel_bridge.errors import StartError, UnauthenticatedError
from otel_bridge.listeners.auth import BearerAuth
from otel_bridge.listeners.config import AuthConfig
from otel_bridge.model import Signal
from otel_bridge.testing import trace_request
from tests.support.otlp_clients import JSON, METHOD_OF, PROTOBUF, Http2

REQUEST = trace_request([{}])
EXPORT = METHOD_OF[Signal.TRACES]


class Files:
    """A certificate on disk, as a receiver is configured with it."""

    def __init__(self, folder, name: str) -> None:
        self.certificate = folder / f"{name}.pem"
        self.key = folder / f"{name}.key"

    def write(self, issued: trustme.LeafCert) -> Files:
        """Replace both files at once, as certificate managers do."""
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        for path, data in ((self.certificate, chain), (self.key, issued.private_key_pem.bytes())):
            new = path.with_suffix(".new")
            new.write_bytes(data)
            os.replace(new, path)  # noqa: PTH105 (atomic, by its usual name)
        return self

    @property
    def setting(self) -> dict[str, str]:
        return {"cert_file": str(self.certificate), "key_file": str(self.key)}


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def server_files(tmp_path, authority):
    return Files(tmp_path, "server").write(authority.issue_cert("localhost", "127.0.0.1"))


def root(authority: trustme.CA) -> bytes:
    return authority.cert_pem.bytes()


def client_context(authority, identity: trustme.LeafCert | None = None, *, newest=None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=root(authority).decode())
    if identity is not None:
        identity.configure_cert(context)
    if newest is not None:
        context.maximum_version = newest
    return context


def grpc_credentials(authority, identity: trustme.LeafCert | None = None) -> grpc.ChannelCredentials:
    if identity is None:
        return grpc.ssl_channel_credentials(root(authority))
    chain = b"".join(blob.bytes() for blob in identity.cert_chain_pems)
    return grpc.ssl_channel_credentials(root(authority), identity.private_key_pem.bytes(), chain)


async def export(running, credentials) -> bytes:
    """One request on a connection of its own."""
    return await running.channel(credentials).unary_unary(EXPORT)(REQUEST, timeout=10)


async def post(running, context) -> int:
    """The same over HTTP."""
    url = f"https://localhost:{running.receiver.http_port}/v1/traces"
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, data=REQUEST, headers={"Content-Type": PROTOBUF}) as response,
    ):
        return response.status


class TestTls:
    async def test_served(self, start, authority, server_files):
        running = await start(grpc={"tls": server_files.setting}, http={"tls": server_files.setting})
        assert await export(running, grpc_credentials(authority)) == b""
        assert await post(running, client_context(authority)) == 200
        assert len(running.sink.requests) == 2

    async def test_plaintext_is_refused(self, start, server_files):
        running = await start(grpc={"tls": server_files.setting}, http={"tls": server_files.setting})
        assert (await running.refused(REQUEST)).code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(aiohttp.ClientError):
            await running.post(REQUEST)
        assert running.sink.requests == []

    @pytest.mark.parametrize("oldest", ["1.2", "1.3"])
    async def test_oldest_version(self, start, authority, server_files, oldest):
        running = await start(http={"tls": server_files.setting | {"min_version": oldest}})
        context = client_context(authority, newest=ssl.TLSVersion.TLSv1_2)
        if oldest == "1.2":
            assert await post(running, context) == 200
        else:
            with pytest.raises(aiohttp.ClientError):
                await post(running, context)
        assert await post(running, client_context(authority)) == 200

    async def test_only_clients_of_the_authority_are_let_in(self, start, tmp_path, authority, server_files):
        ca_file = tmp_path / "clients.pem"
        clients, strangers = trustme.CA(), trustme.CA()
        ca_file.write_bytes(root(clients))
        tls = server_files.setting | {"client_ca_file": str(ca_file)}
        running = await start(grpc={"tls": tls}, http={"tls": tls})
        known, stranger = clients.issue_cert("client"), strangers.issue_cert("client")
        assert await export(running, grpc_credentials(authority, known)) == b""
        assert await post(running, client_context(authority, known)) == 200
        for identity in (None, stranger):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await export(running, grpc_credentials(authority, identity))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await post(running, client_context(authority, identity))
        assert len(running.sink.requests) == 2

    async def test_a_renewed_certificate_is_served_without_restart(
        self, start, tmp_path, authority, server_files
    ):
        tls = server_files.setting
        running = await start(grpc={"tls": tls}, http={"tls": tls})
        await export(running, grpc_credentials(authority))
        assert await post(running, client_context(authority)) == 200
        renewed = trustme.CA()
        server_files.write(renewed.issue_cert("localhost"))
        assert await export(running, grpc_credentials(renewed)) == b""
        assert await post(running, client_context(renewed)) == 200
        with pytest.raises(aiohttp.ClientError):
            await post(running, client_context(authority))
        with pytest.raises(grpc.aio.AioRpcError):
            await export(running, grpc_credentials(authority))

    async def test_a_renewed_client_authority_counts_at_once(self, start, tmp_path, authority, server_files):
        ca_file = tmp_path / "clients.pem"
        old, new = trustme.CA(), trustme.CA()
        ca_file.write_bytes(root(old))
        tls = server_files.setting | {"client_ca_file": str(ca_file)}
        running = await start(grpc={"tls": tls}, http={"tls": tls})
        assert await post(running, client_context(authority, old.issue_cert("client"))) == 200
        ca_file.write_bytes(root(new))
        fresh, stale = new.issue_cert("client"), old.issue_cert("client")
        assert await post(running, client_context(authority, fresh)) == 200
        assert await export(running, grpc_credentials(authority, fresh)) == b""
        with pytest.raises((aiohttp.ClientError, ConnectionError)):
            await post(running, client_context(authority, stale))
        with pytest.raises(grpc.aio.AioRpcError):
            await export(running, grpc_credentials(authority, stale))

    async def test_a_broken_renewal_keeps_the_old_certificate(self, start, authority, server_files):
        tls = server_files.setting
        running = await start(grpc={"tls": tls}, http={"tls": tls})
        server_files.certificate.write_bytes(b"half a cert")
        assert await export(running, grpc_credentials(authority)) == b""
        assert await post(running, client_context(authority)) == 200

    @pytest.mark.parametrize("protocol", ["grpc", "http"])
    @pytest.mark.parametrize("damage", ["missing", "noise", "another key"])
    async def test_files_that_cannot_be_used_end_the_start(
        self, start, authority, server_files, protocol, damage
    ):
        if damage == "missing":
            server_files.key.unlink()
        elif damage == "noise":
            server_files.certificate.write_bytes(b"noise")
        else:
            server_files.key.write_bytes(authority.issue_cert("localhost").private_key_pem.bytes())
        with pytest.raises(StartError) as caught:
            await start(**{protocol: {"tls": server_files.setting}})
        message = str(caught.value)
        assert f"receivers.otlp.protocols.{protocol}.tls" in message
        assert str(server_files.key) in message


class TestBearerTokens:
    TOKEN = "correct horse battery staple".replace(" ", "-")

    @pytest.fixture
    def auth(self):
        return {"auth": {"bearer_tokens": ["other", self.TOKEN]}}

    async def test_let_in(self, start, auth):
        running = await start(grpc=auth, http=auth)
        assert await running.export(REQUEST, metadata=(("authorization", f"Bearer {self.TOKEN}"),)) == b""
        for value in (f"Bearer {self.TOKEN}", f"bearer {self.TOKEN}"):
            assert (await running.post(REQUEST, headers={"Authorization": value})).status == 200
        assert len(running.sink.requests) == 3

    @pytest.mark.parametrize(
        "value", [None, "", "Bearer", "Bearer wrong", "Basic Y29ycmVjdA==", f"Bearer {TOKEN}x", "Bearer é"]
    )
    async def test_kept_out(self, start, auth, value):
        running = await start(grpc=auth, http=auth)
        for content_type, body in ((PROTOBUF, REQUEST), (JSON, b"{}")):
            reply = await running.post(
                body, content_type, headers={} if value is None else {"Authorization": value}
            )
            assert (reply.status, reply.error.code) == (401, 16)
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert self.TOKEN not in reply.error.message
        if value is None or value.isascii():
            metadata = () if value is None else (("authorization", value),)
            error = await running.refused(REQUEST, metadata=metadata)
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
            assert self.TOKEN not in (error.details() or "")
        assert running.sink.requests == []

    async def test_a_stranger_is_refused_before_the_message(self, start, auth):
        running = await start(grpc=auth)
        async with Http2(running) as client:
            await client.send(b"", end=False, authorization="Bearer wrong")
            assert await client.status() == grpc.StatusCode.UNAUTHENTICATED.value[0]

    async def test_a_stranger_is_not_told_to_continue(self, start, auth):
        running = await start(http=auth)
        reader, writer = await asyncio.open_connection("127.0.0.1", running.receiver.http_port)
        writer.write(
            b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()

    async def test_tokens_in_a_file(self, start, tmp_path, monkeypatch):
        monkeypatch.setattr("otel_bridge.listeners.auth._LOOK_INTERVAL", 0.0)
        file = tmp_path / "tokens"
        file.write_text("first\n\n  second  \n")
        running = await start(http={"auth": {"bearer_token_file": str(file)}})

        async def status(token):
            return (await running.post(REQUEST, headers={"Authorization": f"Bearer {token}"})).status

        assert [await status(token) for token in ("first", "second", "third", "")] == [200, 200, 401, 401]
        file.write_text("third\n")
        assert [await status(token) for token in ("first", "third")] == [401, 200]
        file.unlink()
        assert await status("third") == 200
        file.write_text("\n")
        assert await status("third") == 200

    @pytest.mark.parametrize("content", [None, "", "\n \n"])
    async def test_a_file_without_tokens_ends_the_start(self, start, tmp_path, content):
        file = tmp_path / "tokens"
        if content is not None:
            file.write_text(content)
        with pytest.raises(StartError, match=str(file)) as caught:
            await start(grpc={"auth": {"bearer_token_file": str(file)}})
        assert "receivers.otlp.protocols.grpc.auth.bearer_token_file" in str(caught.value)

    def test_every_token_is_compared(self, monkeypatch):
        """The time of a look must not depend on which token matches."""
        compared = []

        def compare(left, right):
            compared.append(right)
            return left == right

        monkeypatch.setattr("otel_bridge.listeners.auth.hmac.compare_digest", compare)
        auth = BearerAuth(AuthConfig(bearer_tokens=("a", "b", "c")), "auth")
        auth.check("Bearer a")
        assert compared == [b"a", b"b", b"c"]
        with pytest.raises(UnauthenticatedError):
            auth.check("Bearer d")


async def test_reflection_is_off(start):
    """A stranger learns nothing of the services by asking."""
    running = await start()
    call = running.channel().unary_unary("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", timeout=10)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

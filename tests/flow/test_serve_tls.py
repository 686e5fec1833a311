"""`excise serve` with a certificate: who is trusted, who is not, and who says nothing."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

import pytest

import authority
import served
from excise.api import connect
from excise.errors import SpecError, SubstrateError
from excise.sandbox import Sandbox

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> authority.Signed:
    return authority.signed(tmp_path_factory.mktemp("signed"), "DNS:localhost", "IP:127.0.0.1")


@pytest.fixture(scope="module")
def server(signed: authority.Signed, tmp_path_factory: pytest.TempPathFactory) -> Generator[served.Served]:
    words = ("--tls-cert", signed.chain, "--tls-key", signed.key, "--drain", "0s", "--log", "json")
    with served.serving(tmp_path_factory.mktemp("tls"), *words, address="local") as found:
        yield found


async def lives(url: str) -> None:
    async with connect(url) as substrate, Sandbox(substrate) as box:
        assert (await box.run("echo fine")).text == "fine\n"
        data = os.urandom(3 << 20)
        await box.write("data", data)
        assert await box.read("data") == data


def test_who_trusts_its_authority_comes_in(
    server: served.Served, signed: authority.Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", signed.authority)
    assert server.url.startswith("https://")
    asyncio.run(lives(server.url))
    asyncio.run(lives(server.url.replace("127.0.0.1", "localhost")))
    curl = ["curl", "-sS", "--cacert", signed.authority, "-H", f"Authorization: Bearer {server.key}"]
    if shutil.which("curl"):
        told = subprocess.run([*curl, f"{server.url}/v1/sandboxes"], capture_output=True, text=True, check=True).stdout
        assert told == '{"sandboxes":[]}\n'
        told = subprocess.run(
            [*curl, "-H", "Origin: http://127.0.0.1", f"{server.url}/readyz"], capture_output=True, text=True, check=True
        ).stdout
        assert "pages of other sites" in told


def test_another_authority_or_name_is_refused_with_the_remedy(
    server: served.Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = authority.signed(tmp_path / "other", "DNS:sandboxes.example")
    monkeypatch.setenv("SSL_CERT_FILE", other.authority)
    with pytest.raises(SubstrateError, match=r"not trusted here .*SSL_CERT_FILE"):
        asyncio.run(lives(server.url))
    words = ("--tls-cert", other.chain, "--tls-key", other.key, "--drain", "0s")
    with (
        served.serving(tmp_path, *words, address="local") as named,
        pytest.raises(SubstrateError, match=r"not trusted here .*by a name that the certificate has"),
    ):
        asyncio.run(lives(named.url))


def test_who_speaks_no_tls_is_sent_away_and_no_key_is_sent_in_the_clear(server: served.Served, tmp_path: Path) -> None:
    with pytest.raises(SubstrateError, match="cannot be reached"):
        asyncio.run(lives(server.url.replace("https://", "http://")))
    with pytest.raises(SpecError, match="would show its key to everybody on the way"):
        asyncio.run(lives("http://sandboxes.example:8700"))
    with (
        served.serving(tmp_path, "--drain", "0s", address="local") as plain,
        pytest.raises(SubstrateError, match="speaks no TLS"),
    ):
        asyncio.run(lives(plain.url.replace("http://", "https://")))
    assert server.key not in server.log.read_text()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_are_refused(server: served.Served) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw, pytest.raises((ssl.SSLError, OSError)):
        context.wrap_socket(raw)


def test_handshakes_that_never_end_are_counted_and_leave_room(
    server: served.Served, signed: authority.Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a connection from its first byte: of one address there are only so many, and each has its time."""
    monkeypatch.setenv("SSL_CERT_FILE", signed.authority)
    before = _descriptors(server)
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(200)]
    try:
        asyncio.run(lives(server.url))
        for _ in range(600):
            idle.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
        deadline = time.monotonic() + 9
        while _descriptors(server) - before > 280 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _descriptors(server) - before <= 280
        idle[0].settimeout(40)
        assert idle[0].recv(1) == b""  # who does not begin is sent away
    finally:
        for one in idle:
            one.close()
    deadline = time.monotonic() + 30
    while _descriptors(server) > before + 8 and time.monotonic() < deadline:
        time.sleep(0.05)
    asyncio.run(lives(server.url))


def _descriptors(server: served.Served) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))

"""Keys that come and go while a server runs, and what one learns of another."""

import asyncio
import secrets
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import served
from excise.action import Shell
from excise.errors import SandboxLost
from excise.sandbox import Sandbox
from excise.substrates.remote import RemoteSubstrate


def asked(url: str, path: str, key: str) -> tuple[int, str]:
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"})  # noqa: S310 - our own server's
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_removed_key_is_sent_away_and_its_sandboxes_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    known = served.keys(path, "ann", "bob")

    async def main(server: served.Served) -> None:
        anns, bobs = (RemoteSubstrate(server.url, key=known[name]) for name in ("ann", "bob"))
        async with Sandbox(bobs, ttl_s=600) as his:
            hers = Sandbox(anns, ttl_s=600)
            await hers.open()
            running = asyncio.ensure_future(hers.run("sleep 600"))
            await asyncio.sleep(0.3)
            subprocess.run([served.EXCISE, "serve", "key", "remove", "ann", "--keys", str(path)], check=True)
            assert (await hers.run("echo still")).text == "still\n"  # until it is told
            server.process.send_signal(signal.SIGUSR1)
            with pytest.raises(SandboxLost, match="its key was removed"):
                await running
            assert asked(server.url, "/v1/sandboxes", known["ann"])[0] == 401
            assert (await his.run("echo fine")).text == "fine\n"
            assert "excise_serve_all_sandboxes 1" in asked(server.url, "/metrics", known["bob"])[1]
            path.write_text("{")  # what cannot be read changes nothing
            server.process.send_signal(signal.SIGUSR1)
            deadline = time.monotonic() + 20
            while "the keys stay as they were" not in server.log.read_text():
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            assert (await his.run("echo fine")).text == "fine\n"
        await anns.close()
        await bobs.close()

    with served.serving(tmp_path, "--keys", str(path), "--drain", "0s", address="local") as server:
        asyncio.run(main(server))
        assert all(key not in server.log.read_text() for key in known.values())


def test_nobody_learns_who_else_is_there(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    known = served.keys(path, "ann", "bob-secret-project")

    async def main(server: served.Served) -> None:
        bobs = RemoteSubstrate(server.url, key=known["bob-secret-project"])
        async with Sandbox(bobs, labels={"what": "hush"}) as box:
            await box.run("true")
            his = box.id
            for page in ("/metrics", "/v1/status", "/v1/sandboxes", "/v1/snapshots", "/openapi.json", "/"):
                told = asked(server.url, page, known["ann"])[1]
                assert not {word for word in ("bob", "hush", his) if word in told}, page
            assert asked(server.url, f"/v1/sandboxes/{his}/waterfall", known["ann"])[0] == 404
            anns = RemoteSubstrate(server.url, key=known["ann"])
            handle = await bobs.attach(his)
            handle._client = anns._client  # pyright: ignore[reportPrivateUsage]  # her channel, his sandbox's id
            for verb in (handle.run(Shell("id")), handle.ready(), handle.alive(), handle.renew(5)):
                with pytest.raises(SandboxLost, match="there is no sandbox"):
                    await verb
            await anns.close()
        assert asked(server.url, f"/v1/sandboxes/{his}/waterfall", known["ann"])[0] == 404
        await bobs.close()

    with served.serving(tmp_path, "--keys", str(path), "--drain", "0s", address="local") as server:
        asyncio.run(main(server))


def test_a_channel_is_its_keys_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    known = served.keys(path, "ann", "bob")

    def asks(server: served.Served, key: str, channel: str, had: str | None) -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            more = "" if had is None else f"Excise-Had: {had}\r\n"
            raw.sendall(
                f"GET /v1/channel HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: excise/1\r\n"
                f"Authorization: Bearer {key}\r\nExcise-Channel: {channel}\r\n{more}\r\n".encode()
            )
            return raw.recv(1000).split(b" ")[1]

    with served.serving(tmp_path, "--keys", str(path), "--drain", "0s", address="fake") as server:
        channel = secrets.token_hex(16)
        assert asks(server, known["ann"], channel, None) == b"101"
        assert asks(server, known["bob"], channel, "0") == b"410"  # hers is not there for him
        assert asks(server, known["bob"], channel, None) == b"101"  # and his own of that name is another
        assert asks(server, known["ann"], channel, None) == b"400"
        assert asks(server, known["ann"], channel, "0") == b"101"
        assert asks(server, known["ann"], channel, "9" * 19) == b"400"
        assert asks(server, known["ann"], channel, "-1") == b"400"
        assert asks(server, known["ann"], "../" + channel[3:], None) == b"400"
        for _ in range(100):  # one crash after the other, none of which waits for anything
            assert asks(server, known["ann"], secrets.token_hex(16), None) == b"101"

"""Where `excise serve` listens and what it writes: what is another's stays, what is broken is said."""

import asyncio
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

import served
from excise.api import connect
from excise.sandbox import Sandbox


def refused(*words: str) -> str:
    done = subprocess.run([served.EXCISE, "serve", "fake", *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_a_file_that_is_no_socket_stays(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    assert "is no socket" in refused("--listen", f"unix://{precious}", "--state", str(tmp_path / "state"))
    assert precious.read_text() == "mine"


def test_another_servers_socket_stays_and_is_its_own_users(tmp_path: Path) -> None:
    async def lives(url: str) -> None:
        async with connect(url) as substrate, Sandbox(substrate) as box:
            assert (await box.run("echo fine")).text == "fine\n"

    path = tmp_path / "one.sock"
    with served.serving(tmp_path / "state", "--listen", f"unix://{path}", "--drain", "0s", address="local") as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        said = refused("--listen", f"unix://{path}", "--state", str(tmp_path / "state"))
        assert "a server that runs writes" in said
        said = refused("--listen", f"unix://{path}", "--state", str(tmp_path / "other"))
        assert "a server listens at" in said
        asyncio.run(lives(server.url))
    assert not path.exists()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_a_server_that_nobody_could_call_is_refused(listen: str, tmp_path: Path) -> None:
    served.keys(tmp_path / "keys.json", "ann")
    words = ("--listen", listen, "--keys", str(tmp_path / "keys.json"))
    assert "can be reached by others: give --tls-cert" in refused(*words)


def test_a_ledger_of_noise_is_no_reason_not_to_start(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    ledger = tmp_path / f"{str(socket).strip('/').replace('/', '-')}.ledger"
    ledger.write_bytes(b'\xff\xfe\n{"id":"\xff"}\n[]\n{"id":"x","key":"../BAD","until":9e18}\n' + os.urandom(300))
    with served.serving(tmp_path, "--listen", f"unix://{socket}", "--drain", "0s", address="fake") as server:
        assert "is gone" in server.log.read_text()


def test_a_state_directory_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [served.EXCISE, "serve", "fake", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "--state" in done.stderr


def test_json_logs_are_json_whatever_is_said(tmp_path: Path) -> None:
    with served.serving(tmp_path, "--log", "json", "--drain", "0s", address="fake") as server:
        pass
    for line in server.log.read_text().splitlines():
        if not line.startswith("excise: "):
            json.loads(line)

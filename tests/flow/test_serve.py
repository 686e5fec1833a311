"""`excise serve` as its users meet it: curl, keys, leases, drains, restarts."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import served
from excise.action import Shell
from excise.api import connect
from excise.errors import CapacityError, SandboxLost, SpecError, SubstrateError
from excise.sandbox import Sandbox
from excise.spec import Spec, Step

CLIENT = """
import asyncio, sys
from excise.api import connect
from excise.sandbox import Sandbox
async def main():
    async with connect(sys.argv[1]) as substrate:
        box = Sandbox(substrate, ttl_s=float(sys.argv[2]))
        await box.open()
        print(box.id, flush=True)
        await box.run("sleep 600")
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server(runs_here: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> Generator[served.Served]:
    runs_here("namespace")
    with served.serving(tmp_path_factory.mktemp("serve")) as found:
        yield found


def ask(
    url: str, path: str, body: Any = None, *, key: str | None = None, method: str | None = None, **headers: str
) -> tuple[int, Any]:
    """As curl does it; a refusal is no exception."""
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, method=method, headers=headers)  # noqa: S310 - our own server's
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            told = answer.read()
            return answer.status, told if answer.headers["Content-Type"] == "application/octet-stream" else _json(told)
    except urllib.error.HTTPError as error:
        return error.code, _json(error.read())


def _json(data: bytes) -> Any:
    try:
        return json.loads(data) if data else None
    except ValueError:
        return data.decode()


def test_a_whole_life_by_http(server: served.Served) -> None:
    url, key = server.url, server.key
    status, made = ask(url, "/v1/sandboxes", {"labels": {"who": "curl"}}, key=key)
    assert status == 201
    one = f"/v1/sandboxes/{made['id']}"
    assert ask(url, one, key=key)[1]["labels"] == {"who": "curl"}
    status, seen = ask(url, f"{one}/actions", {"action": "shell", "script": "echo hi; echo no >&2; exit 3"}, key=key)
    assert (status, seen["stdout"], seen["stderr"], seen["exit_code"], seen["ok"]) == (200, "hi\n", "no\n", 3, False)
    assert ask(url, f"{one}/file?path=/tmp/f", b"\0bytes\xff", key=key, method="PUT")[0] == 204
    assert ask(url, f"{one}/file?path=/tmp/f", key=key) == (200, b"\0bytes\xff")
    assert ask(url, f"{one}/file?path=/none", key=key)[0] == 409
    status, taken = ask(url, f"{one}/snapshots", {}, key=key)
    assert status == 201
    assert ask(url, f"{one}/actions", {"action": "shell", "script": "touch new"}, key=key)[1]["ok"]
    assert ask(url, f"{one}/reset", {"snapshot": taken["id"]}, key=key)[0] == 204
    assert ask(url, f"{one}/actions", {"action": "stat", "path": "new"}, key=key)[1]["errno"] == 2
    assert ask(url, f"{one}/lease", {"lease_s": 30}, key=key)[0] == 204
    assert ask(url, f"/v1/snapshots/{taken['id']}", key=key, method="DELETE")[0] == 204
    verbs = [act["verb"] for act in ask(url, f"{one}/waterfall", key=key)[1]["acts"]]
    assert verbs.count("run") == 6
    assert "snap" in verbs
    assert ask(url, one, key=key, method="DELETE")[0] == 204
    assert ask(url, one, key=key)[0] == 404


def test_the_document_names_every_route(server: served.Served) -> None:
    status, document = ask(server.url, "/openapi.json")
    assert status == 200
    assert {"/v1/sandboxes", "/v1/sandboxes/{id}/actions", "/metrics", "/v1/snapshots/{id}"} <= document["paths"].keys()
    for path, verbs in document["paths"].items():
        for verb in verbs:
            found, _ = ask(
                server.url, path.replace("{id}", "none"), b"" if verb in ("post", "put") else None, method=verb.upper()
            )
            assert found in (200, 401), (verb, path)  # there, and not for who has no key


def test_who_has_no_key_learns_nothing(server: served.Served) -> None:
    for path in ("/v1/sandboxes", "/v1/status", "/v1/capabilities", "/metrics", "/v1/sandboxes/x/waterfall", "/v1/none"):
        for key in (None, "xk_wrong", server.key[:-1], ""):
            status, told = ask(server.url, path, key=key)
            assert (status, told["error"]["text"].split(":")[0]) == (401, "this server wants a key that it knows"), path
    for path in ("/", "/healthz", "/readyz", "/openapi.json"):
        assert ask(server.url, path)[0] == 200


def test_another_name_or_page_is_not_let_in(server: served.Served) -> None:
    key = server.key
    assert ask(server.url, "/v1/sandboxes", key=key, Host="evil.example")[0] == 403
    assert ask(server.url, "/healthz", Host="evil.example:80")[0] == 403
    assert ask(server.url, "/v1/sandboxes", key=key, Origin="http://evil.example")[0] == 403
    assert ask(server.url, "/v1/sandboxes", key=key, Host=f"localhost:{server.port}")[0] == 200
    assert ask(server.url, "/v1/sandboxes", key=key, Origin=server.url)[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/sandboxes", b"{", 400),
        ("/v1/sandboxes", b"[]", 400),
        ("/v1/sandboxes", {"spec": {"image": 7}}, 400),
        ("/v1/sandboxes", {"what": 1}, 400),
        ("/v1/sandboxes", {"spec": {"mounts": [{"source": "/etc", "target": "/x"}]}}, 422),
        ("/v1/sandboxes", {"lease_s": -1}, 400),
        ("/v1/sandboxes", {"lease_s": 1e300}, 400),
        ("/v1/sandboxes", {"snapshot": "none"}, 404),
        ("/v1/sandboxes/none/actions", {"action": "exec", "argv": ["true"]}, 404),
        ("/v1/sandboxes/none/actions", {"action": "none"}, 400),
        ("/v1/sandboxes/..%2f..%2fetc/actions", {"action": "exec", "argv": ["true"]}, 404),
        ("/v1/sandboxes/none/lease", {"lease_s": "x"}, 400),
    ],
)
def test_bad_requests_are_refused_with_the_right_status(server: served.Served, path: str, body: Any, status: int) -> None:
    found, told = ask(server.url, path, body, key=server.key)
    assert (found, bool(told["error"]["text"])) == (status, True), told


def test_two_keys_see_nothing_of_each_other(runs_here: Callable[[str], None], tmp_path: Path) -> None:
    runs_here("namespace")
    known = served.keys(tmp_path / "keys.json", "ann", "bob")
    assert "xk_" not in (tmp_path / "keys.json").read_text()
    nonce = Step("nonce", (Shell("head -c 16 /dev/urandom | od -An -tx1 > /nonce"),))

    async def of(url: str, theirs: str | None = None, snapshot: Any = None) -> tuple[str, Any, str]:
        async with connect(url) as substrate:
            if theirs is not None:
                with pytest.raises(SandboxLost, match="there is no sandbox"):
                    await substrate.attach(theirs)
                assert await substrate.list({}) == ()
                assert await substrate.snapshots() == ()
                with pytest.raises(SpecError, match="there is no snapshot"):
                    await Sandbox(substrate, snapshot).open()
                await substrate.discard(snapshot)  # nothing happens
            first = (await _nonce(substrate), await _nonce(substrate))
            assert first[0] == first[1]
            box = Sandbox(substrate)
            await box.open()
            return box.id, await box.snapshot(), first[0]

    async def _nonce(substrate: Any) -> str:
        async with Sandbox(substrate, Spec(steps=(nonce,))) as box:
            return (await box.run("cat /nonce")).text

    with served.serving(tmp_path, "--keys", str(tmp_path / "keys.json"), "--drain", "0s") as server:
        os.environ["EXCISE_KEY"] = known["ann"]
        try:
            anns, snapshot, hers = asyncio.run(of(server.url))
            os.environ["EXCISE_KEY"] = known["bob"]
            _, _, his = asyncio.run(of(server.url, anns, snapshot))
            assert hers != his  # what her steps led to is not his
            assert ask(server.url, f"/v1/sandboxes/{anns}", key=known["bob"])[0] == 404
            assert ask(server.url, f"/v1/sandboxes/{anns}", key=known["bob"], method="DELETE")[0] == 404
            assert ask(server.url, f"/v1/sandboxes/{anns}", key=known["ann"])[0] == 200
        finally:
            del os.environ["EXCISE_KEY"]


def test_caps_hold_and_are_told_apart(
    runs_here: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_here("namespace")
    known = served.keys(tmp_path / "keys.json", "ann", sandboxes=2, snapshots=1)
    monkeypatch.setenv("EXCISE_KEY", known["ann"])

    async def main(url: str) -> None:
        async with connect(url) as substrate, Sandbox(substrate) as one, Sandbox(substrate) as two:
            with pytest.raises(CapacityError, match="has its 2 sandboxes"):
                await Sandbox(substrate, wait_s=1).open()
            await one.snapshot()
            with pytest.raises(SubstrateError, match="has its 1 snapshots"):
                await two.snapshot()
            waiting = asyncio.ensure_future(Sandbox(substrate, wait_s=20).open())
            await asyncio.sleep(0.3)
            await two.close()
            await waiting  # there was room within its deadline

    with served.serving(tmp_path, "--keys", str(tmp_path / "keys.json"), "--drain", "0s") as server:
        asyncio.run(main(server.url))


def test_who_calls_too_often_waits_and_is_answered(
    runs_here: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_here("namespace")
    known = served.keys(tmp_path / "keys.json", "ann", rate=4)
    monkeypatch.setenv("EXCISE_KEY", known["ann"])

    async def main(url: str) -> None:
        async with connect(url) as substrate, Sandbox(substrate) as box:
            for number in range(45):  # a burst of forty is free
                assert (await box.run(f"echo {number}")).text == f"{number}\n"
            process = await box.start("echo started")
            assert (await process.wait()).stdout == b"started\n"

    with served.serving(tmp_path, "--keys", str(tmp_path / "keys.json"), "--drain", "0s") as server:
        asyncio.run(main(server.url))
        refused = [ask(server.url, "/v1/sandboxes", key=known["ann"])[0] for _ in range(20)]
        assert 429 in refused


def test_a_killed_clients_sandboxes_go_with_their_lease(server: served.Served) -> None:
    client = subprocess.Popen([sys.executable, "-c", CLIENT, server.url, "2"], stdout=subprocess.PIPE, text=True)
    assert client.stdout is not None
    sandbox = client.stdout.readline().strip()
    assert ask(server.url, f"/v1/sandboxes/{sandbox}", key=server.key)[0] == 200
    client.kill()
    client.wait()
    client.stdout.close()
    deadline = time.monotonic() + 30
    while ask(server.url, f"/v1/sandboxes/{sandbox}", key=server.key)[0] != 404:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert sandbox in server.log.read_text()


@pytest.mark.parametrize("address", ["namespace", "docker"])
def test_a_killed_servers_sandboxes_are_held_again_or_gone_and_it_says_which(
    address: str, runs_here: Callable[[str], None], tmp_path: Path
) -> None:
    runs_here(address)

    async def made(url: str) -> str:
        async with connect(url) as substrate:
            box = Sandbox(substrate, ttl_s=600)
            await box.open()
            await box.run("echo kept > /kept")
            return box.id

    async def found(url: str, id: str) -> str:
        async with connect(url) as substrate:
            handle = await substrate.attach(id)
            try:
                return (await handle.run(Shell("cat /kept"))).text
            finally:
                await handle.close()

    listen = ("--listen", f"unix://{tmp_path}/socket", "--drain", "0s")
    with served.serving(tmp_path, *listen, address=address) as first:
        sandbox = asyncio.run(made(first.url))
        first.stop(signal.SIGKILL)
    with served.serving(tmp_path, *listen, address=address) as second:
        if address == "namespace":
            with pytest.raises(SandboxLost, match="there is no sandbox"):
                asyncio.run(found(second.url, sandbox))
            assert f"sandbox {sandbox} of key local, which a server before this one held, is gone" in second.log.read_text()
        else:
            assert asyncio.run(found(second.url, sandbox)) == "kept\n"
            assert f"sandbox {sandbox} of key local is held again" in second.log.read_text()


def test_it_drains(runs_here: Callable[[str], None], tmp_path: Path) -> None:
    runs_here("namespace")

    async def main(server: served.Served) -> None:
        async with connect(server.url) as substrate:
            async with Sandbox(substrate) as box:
                server.process.send_signal(signal.SIGTERM)
                while ask(server.url, "/readyz")[0] != 503:
                    await asyncio.sleep(0.02)
                assert (await box.run("echo still")).text == "still\n"
                with pytest.raises(CapacityError, match="being stopped"):
                    await Sandbox(substrate, wait_s=1).open()
            assert await asyncio.to_thread(server.process.wait, 30) == 0

    with served.serving(tmp_path) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--listen", "0.0.0.0:0"), "can be reached by others: give --keys and --tls-cert and --tls-key"),
        (("--listen", "8700"), "it is HOST:PORT"),
        (("--listen", "unix://x"), "named by its whole path"),
        (("--keys", "/none/keys.json"), "make the first key with"),
        (("--tls-cert", "/etc/hostname"), "go together"),
        (("--log", "xml"), "it is text or json"),
        (("--report", "/none"), "there is no page at"),
    ],
)
def test_bad_options_name_the_remedy(words: tuple[str, ...], said: str) -> None:
    done = subprocess.run([served.EXCISE, "serve", "fake", *words], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr

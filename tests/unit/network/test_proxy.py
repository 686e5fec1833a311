"""The proxy as a process of its own: listeners by descriptor, across network namespaces; its life and death."""

import array
import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from excise.action import Exec, Shell, Write
from excise.errors import SandboxLost, SpecError
from excise.network.client import PORT, Door, Proxies, for_steps, phases, policy_of, variables
from excise.network.policy import Policy
from excise.spec import Allow, Secret, Spec, Step

from .wires import connected, echo, listener, server


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(bounded())


def to(*ports: int) -> Policy:
    return Policy.allowing(("127.0.0.1",), ports)


def ignored(_: str) -> None:
    """For doors whose loss is not looked at."""


async def opened(proxies: Proxies, policy: Policy, on_lost: Callable[[str], None] = ignored) -> tuple[Door, int]:
    with listener() as sock:
        port = sock.getsockname()[1]
        return await proxies.serve(sock.detach(), policy, on_lost), port


def proxy_pid() -> int:
    """Of the one child of this process."""
    (found,) = [
        int(entry.parent.name)
        for entry in Path("/proc").glob("[0-9]*/cmdline")
        if b"excise.network.proxy" in _read(entry) and _parent(entry.parent) == os.getpid()
    ]
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _parent(process: Path) -> int:
    return int((_read(process / "stat") or b"0 (x) R 0").rpartition(b")")[2].split()[1])


def test_doors_open_change_and_close() -> None:
    async def main() -> None:
        proxies = Proxies()
        async with server(echo) as far:
            one, port = await opened(proxies, to(far))
            other, beside = await opened(proxies, Policy())
            async with connected(port) as client, connected(beside) as refused:
                assert await client.tunnel("127.0.0.1", far) == 200
                assert await refused.tunnel("127.0.0.1", far) == 403
                await one.change(Policy())
                assert await client.reader.read() == b""
            await other.change(to(far))
            async with connected(beside) as client:
                assert await client.tunnel("127.0.0.1", far) == 200
            await one.close()
            await one.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
        await proxies.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", beside)).close()

    run(main())


def test_a_long_list_fits() -> None:
    async def main() -> None:
        proxies = Proxies()
        async with server(echo) as far:
            hosts = (*(f"host-{n}.example" for n in range(20_000)), "127.0.0.1")
            _, port = await opened(proxies, Policy.allowing(hosts, (far,)))
            async with connected(port) as client:
                assert await client.tunnel("127.0.0.1", far) == 200
        await proxies.close()

    run(main())


def test_many_doors() -> None:
    async def main() -> None:
        proxies = Proxies()
        async with server(echo) as far:
            doors = [await opened(proxies, to(far)) for _ in range(300)]
            for _, port in doors[::50]:
                async with connected(port) as client:
                    assert await client.tunnel("127.0.0.1", far) == 200
            await asyncio.gather(*(door.close() for door, _ in doors))
            assert len(list(Path(f"/proc/{proxy_pid()}/fd").iterdir())) < 20
        await proxies.close()

    run(main())


def test_it_gives_up_roots_rights() -> None:
    if os.geteuid() != 0:
        pytest.skip("there are none to give up")

    async def main() -> None:
        proxies = Proxies()
        async with server(echo) as far:
            _, port = await opened(proxies, to(far))
            async with connected(port) as client:
                assert await client.tunnel("127.0.0.1", far) == 200
            status = Path(f"/proc/{proxy_pid()}/status").read_text()
            assert "\nUid:\t65534\t65534\t65534\t65534\n" in status
            assert "\nCapEff:\t0000000000000000\n" in status
            assert "\nGroups:\t \n" in status
        await proxies.close()

    run(main())


def test_a_killed_proxy_is_a_loss_and_the_next_door_has_a_new_one() -> None:
    async def main() -> None:
        proxies = Proxies()
        lost: list[str] = []
        over = asyncio.Event()

        def on_lost(reason: str) -> None:
            lost.append(reason)
            over.set()

        async with server(echo) as far:
            door, port = await opened(proxies, to(far), on_lost)
            async with connected(port) as client:
                assert await client.tunnel("127.0.0.1", far) == 200
                os.kill(proxy_pid(), signal.SIGKILL)
                await over.wait()
            assert lost == ["the proxy between this sandbox and the network has ended"]
            with pytest.raises(SandboxLost):
                await door.change(Policy())
            await door.close()
            _, port = await opened(proxies, to(far))
            async with connected(port) as client:
                assert await client.tunnel("127.0.0.1", far) == 200
        await proxies.close()
        assert len(lost) == 1, "a close that was asked for is no loss"

    run(main())


_CLIENT = """
import asyncio, os, sys
from excise.network.client import Proxies
from excise.network.policy import Policy

async def main():
    proxies = Proxies()
    door = await proxies.serve(int(sys.argv[1]), Policy.allowing(("127.0.0.1",), (int(sys.argv[2]),)), print)
    print("served", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_it_ends_with_a_client_that_is_killed() -> None:
    async def main() -> None:
        async with server(echo) as far:
            with listener() as sock:
                port = sock.getsockname()[1]
                argv = [sys.executable, "-c", _CLIENT, str(sock.fileno()), str(far)]
                process = subprocess.Popen(argv, pass_fds=(sock.fileno(),), stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"served\n"
            async with connected(port) as client:
                assert await client.tunnel("127.0.0.1", far) == 200
                process.kill()
                assert await client.reader.read() == b"", "the tunnel ends with the proxy"
            process.wait()
            process.stdout.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()

    run(main())


_INSIDE = """
import array, os, socket, subprocess, sys, urllib.request
control = socket.socket(fileno=int(sys.argv[1]))
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with socket.create_server(("127.0.0.1", 3128)) as listener:
    control.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])
where = control.recv(100).decode()
try:
    socket.create_connection(("127.0.0.1", int(where.rpartition(":")[2].rstrip("/"))), 5)
except OSError as error:
    print("directly:", error.strerror)
print("by proxy:", urllib.request.urlopen(where, timeout=60).read().decode())
try:
    urllib.request.urlopen("http://10.9.9.9/", timeout=60)
except OSError as error:
    print("elsewhere:", error)
"""


def _inside(must_work: Callable[[str, str], None]) -> list[str]:
    """How to be in a network namespace of one's own, as anybody."""
    argv = ["unshare", "--user", "--map-root-user", "--net"]
    tried = subprocess.run([*argv, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        must_work("unshare", tried.stderr.strip())
    return argv


async def _hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
    await writer.drain()


def test_a_listener_of_another_network_namespace(must_work: Callable[[str, str], None]) -> None:
    argv = _inside(must_work)

    async def main() -> None:
        proxies = Proxies()
        ours, theirs = socket.socketpair()
        env = {**variables(), "PATH": os.environ["PATH"], "NO_PROXY": "", "no_proxy": ""}
        async with server(_hello) as far:
            with ours, theirs:
                process = subprocess.Popen(
                    [*argv, sys.executable, "-c", _INSIDE, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    stdout=subprocess.PIPE,
                    env=env,
                )
                theirs.close()
                _, extra, _, _ = await asyncio.to_thread(ours.recvmsg, 1, socket.CMSG_LEN(4))
                (descriptor,) = array.array("i", extra[0][2])
                door = await proxies.serve(descriptor, Policy.allowing(("127.0.0.1",), (far, 80)), ignored)
                ours.sendall(f"http://127.0.0.1:{far}/".encode())
                said, _ = await asyncio.to_thread(process.communicate, timeout=20)
        assert said.decode().splitlines() == [
            "directly: Connection refused",
            "by proxy: hello",
            "elsewhere: HTTP Error 403: excise: 10.9.9.9 is private; "
            "list the address, or a block of that range, in Allow(hosts, ports)",
        ]
        await door.close()
        await proxies.close()

    run(main())


# ---- what a spec asks for


def test_variables_name_the_proxy_in_every_way() -> None:
    found = variables(PORT)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        assert found[name] == "http://127.0.0.1:3128"
    assert found["no_proxy"] == found["NO_PROXY"] == "localhost,127.0.0.1,::1"


def test_policies_of_a_spec() -> None:
    assert phases(Spec()) == (Policy(), Policy())
    assert phases(Spec(network="open")) == (Policy("open"), Policy("open"))
    assert phases(Spec(network="none", build_network="open")) == (Policy("open"), Policy())
    allow = Allow(("example.org",), (80,))
    assert phases(Spec(network=allow, build_network="none")) == (Policy(), Policy.allowing(("example.org",), (80,)))


def test_steps_find_the_proxy_where_actions_do_not() -> None:
    own = Exec(("make",), env={"http_proxy": "mine", "A": "b"})
    spec = Spec(
        repo="https://example.org/x@abc",
        deps="pip install x",
        steps=(Step("s", (own, Write("f", b""), Shell("x", session="main"))),),
        env={"HTTP_PROXY": "the spec's"},
        secrets={"HTTPS_PROXY": Secret("hidden")},
        network="none",
        build_network="open",
    )
    made = for_steps(spec)
    clone, deps, (command, file, in_session) = (step.actions for step in made.all_steps())
    for (action,) in (clone, deps):
        assert isinstance(action, Shell)
        assert action.env["https_proxy"] == "http://127.0.0.1:3128"
        assert action.env.keys() & {"HTTP_PROXY", "HTTPS_PROXY"} == set()
    assert isinstance(command, Exec)
    assert (command.env["http_proxy"], command.env["A"], command.env["no_proxy"][:9]) == ("mine", "b", "localhost")
    assert (file, in_session) == (Write("f", b""), Shell("x", session="main"))
    assert (made.env, made.secrets, made.network) == (spec.env, spec.secrets, "none")


@pytest.mark.parametrize("allow", [Allow(("https://example.org",)), Allow(("example.org",), (0,)), Allow(("10.0.0.1/8",))])
def test_a_wrong_entry_is_refused(allow: Allow) -> None:
    with pytest.raises(SpecError, match="network=Allow: "):
        policy_of(allow)

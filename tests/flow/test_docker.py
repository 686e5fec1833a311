"""The docker substrate beyond the contract: where the daemon is, what it refuses, what outlives whom."""

import asyncio
import hashlib
import json
import os
import ssl
import subprocess
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from excise.action import End, Exec, Observation, Output, Pty, Read, Shell, Write
from excise.errors import ExciseError, SandboxLost, SpecError, SubstrateError, Unsupported
from excise.registry import make
from excise.sandbox import Sandbox
from excise.spec import Limits, Secret, Spec
from excise.substrates.docker import DockerGuestSubstrate, DockerSubstrate
from excise.substrates.docker.container import SANDBOX, Prepared, config, name
from excise.substrates.docker.endpoint import DEFAULT_URL, resolve
from excise.substrates.docker.handle import DockerHandle

MEBIBYTE = 1 << 20


# ---- where the daemon is: no daemon needed


def context(place: Path, name: str, endpoint: object) -> Path:
    """A docker configuration directory that holds this context."""
    meta = place / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Endpoints": {"docker": endpoint}}))
    return place


def test_docker_host_goes_before_the_context_and_host_before_both(tmp_path: Path) -> None:
    context(tmp_path, "far", {"Host": "tcp://far:2375"})
    environ = {"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "far", "DOCKER_HOST": "tcp://near:2375"}
    assert resolve("unix:///mine.sock", environ).url == "unix:///mine.sock"
    assert resolve(None, environ).url == "tcp://near:2375"
    del environ["DOCKER_HOST"]
    assert resolve(None, environ).url == "tcp://far:2375"
    environ["DOCKER_CONTEXT"] = "default"
    assert resolve(None, environ).url == DEFAULT_URL


def test_the_current_context_of_the_docker_command_is_honoured(tmp_path: Path) -> None:
    environ = {"DOCKER_CONFIG": str(tmp_path)}
    assert resolve(None, environ).url == DEFAULT_URL
    context(tmp_path, "rootless", {"Host": "unix:///run/user/1000/docker.sock"})
    (tmp_path / "config.json").write_text('{"currentContext": "rootless", "auths": {}}')
    found = resolve(None, environ)
    assert (found.url, found.here, found.encrypted) == ("unix:///run/user/1000/docker.sock", True, False)
    assert resolve(None, {**environ, "DOCKER_CONTEXT": "default"}).url == DEFAULT_URL


def test_certificates_come_from_the_context_or_from_the_environment(tmp_path: Path) -> None:
    context(tmp_path, "far", {"Host": "tcp://far:2376", "SkipTLSVerify": True})
    certificates = tmp_path / "contexts" / "tls" / hashlib.sha256(b"far").hexdigest() / "docker"
    certificates.mkdir(parents=True)
    found = resolve(None, {"DOCKER_CONFIG": str(tmp_path), "DOCKER_CONTEXT": "far"})
    assert (found.certificates, found.verify, found.here) == (certificates, False, False)
    environ = {"DOCKER_HOST": "tcp://far:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certs"}
    assert resolve(None, environ).certificates == Path("/certs")
    assert resolve(None, {**environ, "DOCKER_HOST": DEFAULT_URL}).certificates is None


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"DOCKER_HOST": "ssh://me@far"}, "ssh -NL"),
        ({"DOCKER_HOST": "far:2375"}, "is no Docker address"),
        ({"DOCKER_HOST": "tcp://"}, "is no Docker address"),
        ({"DOCKER_CONTEXT": "gone"}, "there is no docker context 'gone' .*docker context ls"),
        ({"DOCKER_CONTEXT": "hollow"}, "names no docker host"),
    ],
)
def test_an_address_that_will_not_do_is_a_sentence(tmp_path: Path, environ: dict[str, str], sentence: str) -> None:
    context(tmp_path, "hollow", {})
    with pytest.raises(SpecError, match=sentence):
        resolve(None, {"DOCKER_CONFIG": str(tmp_path), **environ})


def test_a_configuration_that_is_no_json_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SpecError, match=r"config.json cannot be read"):
        resolve(None, {"DOCKER_CONFIG": str(tmp_path)})


def test_nobody_answers(tmp_path: Path) -> None:
    async def scenario() -> None:
        substrate = make(f"docker?host=unix://{tmp_path}/docker.sock")
        try:
            await substrate.probe()
        finally:
            await substrate.close()

    with pytest.raises(SubstrateError, match=r"no Docker daemon answers at unix://.*start it .* or set DOCKER_HOST"):
        asyncio.run(scenario())


def test_no_variable_and_no_secret_is_in_a_containers_configuration() -> None:
    spec = Spec(env={"TOKEN": "of the spec"}, secrets={"KEY": Secret("hidden")}, limits=Limits(memory_bytes=MEBIBYTE))
    made = config(spec, Prepared(reference="x"), labels={}, lease_s=1, request_id="r", runtime=None)
    assert "of the spec" not in json.dumps(made)
    assert "hidden" not in json.dumps(made)
    assert made["HostConfig"]["MemorySwap"] == made["HostConfig"]["Memory"] == MEBIBYTE
    assert made["HostConfig"]["NetworkMode"] == "none"


def test_any_request_id_makes_a_name() -> None:
    assert name("abc-1") == "excise-abc-1"
    odd = {name("a/b"), name("a b"), name("x" * 500)}
    assert len(odd) == 3
    assert all(len(made) < 100 and made.removeprefix("excise-").isalnum() for made in odd)


# ---- with a daemon


@pytest.fixture
def docker(runs_here: Callable[[str], None]) -> None:
    runs_here("docker")


@asynccontextmanager
async def sandbox(
    spec: Spec | None = None, *, host: str | None = None, **terms: Any
) -> AsyncGenerator[tuple[DockerSubstrate, DockerHandle]]:
    substrate = DockerSubstrate(host=host)
    terms = {"deadline_s": 60.0, "lease_s": 600.0, "labels": {}, "request_id": uuid.uuid4().hex, **terms}
    try:
        handle = await substrate.create(spec or Spec(), **terms)
        try:
            await handle.ready()
            yield substrate, handle
        finally:
            await handle.close()
    finally:
        await substrate.close()


def in_sandbox(scenario: Callable[[DockerHandle], Coroutine[Any, Any, None]], spec: Spec | None = None) -> None:
    async def whole() -> None:
        async with sandbox(spec) as (_, handle):
            await scenario(handle)

    asyncio.run(whole())


@pytest.mark.usefixtures("docker")
def test_an_image_the_daemon_does_not_hold_is_never_pulled() -> None:
    async def scenario() -> None:
        async with sandbox(Spec(image="excise.invalid/none:1")):
            pass

    with pytest.raises(SpecError, match=r"holds no image 'excise.invalid/none:1': `docker pull excise.invalid/none:1`"):
        asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_a_runtime_the_daemon_does_not_know() -> None:
    async def scenario() -> None:
        substrate = DockerSubstrate(runtime="nonesuch")
        try:
            await substrate.probe()
        finally:
            await substrate.close()

    with pytest.raises(SubstrateError, match=r"knows no runtime 'nonesuch', only: .*runc"):
        asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_another_client_attaches_and_the_first_sees_what_it_did() -> None:
    async def scenario() -> None:
        async with sandbox(Spec(env={"VALUE": "of the spec"}, limits=Limits(memory_bytes=64 * MEBIBYTE))) as (_, first):
            await first.run(Write("file", b"mine"))
            substrate = DockerSubstrate()
            try:
                second = await substrate.attach(first.id)
                assert (await second.run(Read("file"))).stdout == b"mine"
                assert (await second.run(Shell('echo "[$VALUE]"'))).stdout == b"[]\n"  # kept nowhere, as the docstring says
                assert (await second.run(Shell(EAT))).end is End.OUT_OF_MEMORY
                await second.close()
            finally:
                await substrate.close()
            with pytest.raises(SandboxLost):
                await first.run(Exec(("true",)))

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_what_is_not_ours_is_not_attached_to() -> None:
    async def scenario() -> None:
        async with sandbox() as (substrate, _):
            with pytest.raises(SandboxLost, match="no sandbox 'nonesuch'"):
                await substrate.attach("nonesuch")

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_a_lease_that_another_client_renewed_is_honoured_by_gc() -> None:
    async def scenario() -> None:
        request_id = uuid.uuid4().hex
        async with sandbox(lease_s=-10.0, request_id=request_id) as (first, handle):
            other = DockerSubstrate()
            try:
                await (await other.attach(handle.id)).renew(1000.0)
                assert handle.id not in await first.collect()
                again = await other.create(Spec(), deadline_s=60, lease_s=1, labels={}, request_id=request_id)
                assert again.id == handle.id
                await handle.renew(-1.0)
                assert handle.id in await other.collect()
            finally:
                await other.close()
            with pytest.raises(SandboxLost):
                await handle.run(Exec(("true",)))

    asyncio.run(scenario())


EAT = "x=0123456789abcdef\n" + 'x="$x$x"\n' * 24 + "echo survived"


@pytest.mark.usefixtures("docker")
def test_a_limit_that_struck_is_not_held_against_later_actions() -> None:
    async def scenario(handle: DockerHandle) -> None:
        seen = await handle.run(Shell(f"sh -c '{EAT}'; exit 0"))
        assert (seen.end, seen.exit_code) == (End.EXITED, 0)
        seen = await handle.run(Shell("exit 137"))
        assert (seen.end, seen.exit_code) == (End.EXITED, 137)
        assert (await handle.run(Shell(EAT))).end is End.OUT_OF_MEMORY

    in_sandbox(scenario, Spec(limits=Limits(memory_bytes=64 * MEBIBYTE)))


@pytest.mark.usefixtures("docker")
def test_a_fork_bomb_is_ended_at_its_timeout() -> None:
    async def scenario(handle: DockerHandle) -> None:
        seen = await handle.run(Shell("f() { f | f & }; f; sleep 1000", timeout_s=1.0))
        assert seen.end is End.TIMED_OUT
        assert (await handle.run(Shell("ls -d /proc/[0-9]* | wc -l"))).stdout.split()[0] <= b"6"

    in_sandbox(scenario, Spec(limits=Limits(pids=64)))


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize("script", ["kill -9 -1", "pkill sleep; pkill -9 sleep; pkill sh", "kill -9 1; kill 1"])
def test_no_signal_from_inside_ends_the_sandbox(script: str) -> None:
    async def scenario(handle: DockerHandle) -> None:
        await handle.run(Shell(script))
        assert (await handle.run(Shell("echo alive"))).stdout == b"alive\n"

    in_sandbox(scenario)


@pytest.mark.usefixtures("docker")
def test_processes_of_another_user_die_with_their_action() -> None:
    async def scenario(handle: DockerHandle) -> None:
        script = "setsid sh -c 'sleep 1234567 >/dev/null 2>&1 </dev/null &'; sleep 1000"
        other = asyncio.ensure_future(handle.run(Shell("while test ! -e go; do sleep 0.02; done")))  # so it is not alone
        assert (await handle.run(Shell(script, user="nobody", timeout_s=1.0))).end is End.TIMED_OUT
        assert (await handle.run(Shell("pgrep -f '[1]234567'"))).exit_code == 1
        await handle.run(Shell("touch go"))
        assert (await other).ok

    in_sandbox(scenario)


@pytest.mark.usefixtures("docker")
def test_the_containers_death_is_a_loss_and_never_a_result() -> None:
    async def scenario(handle: DockerHandle) -> None:
        running = asyncio.ensure_future(handle.run(Shell("echo up >up; sleep 1000")))
        await handle.run(Shell("while test ! -e up; do sleep 0.02; done"))
        subprocess.run(["docker", "kill", handle.id], check=True, capture_output=True)
        for action in (running, handle.run(Exec(("true",))), handle.run(Read("up"))):
            with pytest.raises(SandboxLost):
                await action

    in_sandbox(scenario)


@pytest.mark.usefixtures("docker")
def test_a_user_that_is_not_there_is_the_callers_doing() -> None:
    async def scenario(handle: DockerHandle) -> None:
        seen = await handle.run(Exec(("true",), user="nonesuch"))
        assert (seen.end, seen.exit_code) == (End.EXITED, 126)
        assert b"unable to find user nonesuch" in seen.stderr

    in_sandbox(scenario)


@pytest.mark.usefixtures("docker")
def test_a_terminal_knows_its_size_from_the_start_and_control_keys_pass() -> None:
    async def scenario(handle: DockerHandle) -> None:
        process = await handle.start(Shell("stty size; stty raw -echo; echo up; head -c 2 | od -An -tx1", pty=Pty(33, 77)))
        said = b""
        async for event in process.events():
            if isinstance(event, Output):
                asked, said = b"up" in said, said + event.data
                if not asked and b"up" in said:
                    await process.write(b"\x10\x11")  # ctrl-p ctrl-q, which Docker would take for its own
        assert said.split() == [b"33", b"77", b"up", b"10", b"11"]

    in_sandbox(scenario)


async def _pieces(*pieces: bytes | Exception) -> AsyncGenerator[bytes]:
    for piece in pieces:
        if isinstance(piece, Exception):
            raise piece
        yield piece


@pytest.mark.usefixtures("docker")
def test_an_upload_that_fails_says_whose_fault_it_was() -> None:
    async def scenario(handle: DockerHandle) -> None:
        with pytest.raises(OSError, match="tar failed inside the sandbox"):
            await handle.upload("here", _pieces(b"no tar" * 1000))
        with pytest.raises(LookupError, match="the caller's own"):
            await handle.upload("here", _pieces(b"\0" * 512, LookupError("the caller's own")))
        await handle.run(Write("file", b""))
        with pytest.raises(FileExistsError):
            await handle.upload("file", _pieces())
        assert (await handle.run(Shell("pgrep tar"))).exit_code == 1

    in_sandbox(scenario)


@pytest.mark.usefixtures("docker")
def test_an_image_of_the_daemon_brings_its_environment_directory_and_user(tmp_path: Path) -> None:
    tag = f"excise-test/{uuid.uuid4().hex}"
    changes = ["ENV COLOUR=blue", "WORKDIR /var/place", "USER nobody", 'ENTRYPOINT ["/bin/false"]']

    async def scenario() -> None:
        async with sandbox(Spec(image=tag, env={"SHAPE": "round"})) as (_, handle):
            seen = await handle.run(Shell("echo $COLOUR $SHAPE; pwd; id -un"))
            assert seen.stdout == b"blue round\n/var/place\nnobody\n"

    tar = _small_root(tmp_path)
    arguments = [word for change in changes for word in ("--change", change)]
    subprocess.run(["docker", "import", *arguments, str(tar), tag], check=True, capture_output=True)
    try:
        asyncio.run(scenario())
    finally:
        subprocess.run(["docker", "rmi", tag], check=True, capture_output=True)


def _small_root(place: Path) -> Path:
    """A root file system with a shell, some coreutils and their libraries: what a minimal image has."""
    root = place / "root"
    for program in ("sh", "sleep", "true", "id", "cat"):
        found = subprocess.run(["sh", "-c", f"command -v {program}"], capture_output=True, text=True, check=True)
        path = Path("/bin") / program if found.stdout.strip() == program else Path(found.stdout.strip())
        listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout.split()
        for file in (path, *(Path(word) for word in listed if word.startswith("/"))):
            inside = root / ("bin" if file == path else str(file.parent).lstrip("/")) / file.name
            inside.parent.mkdir(parents=True, exist_ok=True)
            if not inside.exists():
                inside.write_bytes(file.read_bytes())
                inside.chmod(0o755)
    for directory in ("etc", "tmp", "proc", "dev", "sys"):
        (root / directory).mkdir()
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    tar = place / "root.tar"
    subprocess.run(["tar", "-C", str(root), "-cf", str(tar), "."], check=True)
    return tar


# ---- over other connections


@pytest.fixture
def certificates(tmp_path: Path, must_work: Callable[[str, str], None]) -> Path:
    """ca.pem, cert.pem and key.pem of one that signs itself, for localhost."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        must_work("openssl", made.stderr)
    (tmp_path / "ca.pem").write_bytes((tmp_path / "cert.pem").read_bytes())
    return tmp_path


class Relay:
    """The daemon behind another address."""

    def __init__(self, cut_at: bytes | None = None) -> None:
        """`cut_at`: the request that the daemon dies of."""
        self.cut_at = cut_at
        self._going: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path) -> str:
        self._server = await asyncio.start_unix_server(self._serve, path)
        return f"unix://{path}"

    async def listen_with_tls(self, certificates: Path) -> str:
        """Both sides' certificates are checked."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificates / "ca.pem")
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_cert_chain(certificates / "cert.pem", certificates / "key.pem")
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        return f"tcp://localhost:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._going.add(task)
        inner_reader, inner_writer = await asyncio.open_unix_connection(resolve(None).socket)
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(_copy(reader, inner_writer, self), _copy(inner_reader, writer))
        inner_writer.transport.abort()
        writer.transport.abort()
        self._going.discard(task)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        going = set(self._going)
        for task in going:
            task.cancel()
        if going:
            await asyncio.wait(going)


@asynccontextmanager
async def relay(cut_at: bytes | None = None) -> AsyncGenerator[Relay]:
    one = Relay(cut_at)
    try:
        yield one
    finally:
        await one.stop()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, relay: Relay | None = None) -> None:
    while data := await reader.read(65536):
        if relay is not None and relay.cut_at is not None and relay.cut_at in data:
            raise ConnectionResetError
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.transport.close()


@pytest.mark.usefixtures("docker")
def test_over_tls_stdin_has_an_end_too(certificates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
    data = os.urandom(3 * MEBIBYTE)

    async def scenario() -> None:
        async with relay() as far, sandbox(host=await far.listen_with_tls(certificates)) as (_, handle):
            assert (await handle.run(Write("file", data))).ok
            assert (await handle.run(Read("file"))).stdout == data
            seen: Observation = await handle.run(Shell("wc -c; exit 3", stdin=data))
            assert (seen.stdout.strip(), seen.exit_code) == (str(len(data)).encode(), 3)
            assert (await handle.run(Shell("exit 4", stdin=data))).exit_code == 4
            process = await handle.start(Exec(("cat",)))
            with pytest.raises(Unsupported, match="over TLS"):
                await process.close_stdin()
            await process.kill()

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_a_daemon_that_dies_while_it_saves_a_sandbox_is_a_loss(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with relay(b"/commit?") as near, sandbox(host=await near.listen(tmp_path / "docker.sock")) as (_, handle):
            with pytest.raises(SandboxLost, match="does not answer any more"):
                await handle.snapshot()

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
@pytest.mark.parametrize(("kind", "cut_at"), [(DockerSubstrate, b"/containers/create?"), (DockerGuestSubstrate, b"/attach?")])
def test_a_reset_that_fails_before_anything_was_ended_leaves_the_sandbox_as_it_was(
    kind: type[DockerSubstrate | DockerGuestSubstrate], cut_at: bytes, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with relay() as near:
            host = await near.listen(tmp_path / "docker.sock")
            substrate = kind(host=host)
            async with Sandbox(substrate) as box:
                await box.write("kept", b"here")
                snapshot = await box.snapshot()
                for _ in range(2):
                    near.cut_at = cut_at
                    with pytest.raises(ExciseError):
                        await box.reset(snapshot)
                    near.cut_at = None
                    assert await box.read("kept") == b"here"
                await box.reset(snapshot)
                assert await box.read("kept") == b"here"
                await substrate.discard(snapshot)
                first = box.id
            await substrate.close()
            left = ["docker", "ps", "-aq", "--filter", f"label={SANDBOX}={first}"]
            assert subprocess.run(left, capture_output=True, check=True, timeout=60).stdout == b""

    asyncio.run(scenario())


@pytest.mark.usefixtures("docker")
def test_a_daemon_that_goes_away_is_a_loss_and_never_a_result(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with relay() as near, sandbox(host=await near.listen(tmp_path / "docker.sock")) as (_, handle):
            running = asyncio.ensure_future(handle.run(Shell("echo up >up; sleep 1000")))
            await handle.run(Shell("while test ! -e up; do sleep 0.02; done"))
            await near.stop()
            for action in (running, handle.run(Exec(("true",))), handle.renew(60)):
                with pytest.raises(SandboxLost):
                    await action
            (tmp_path / "docker.sock").unlink()
            await near.listen(tmp_path / "docker.sock")  # so that it can be closed

    asyncio.run(scenario())


def test_certificates_that_do_not_load_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))

    async def scenario() -> None:
        async with sandbox(host="tcp://localhost:1"):
            pass

    with pytest.raises(SpecError, match="do not load"):
        asyncio.run(scenario())

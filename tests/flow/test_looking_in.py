"""Looking into a sandbox from another process: its owner is this one, the command line is another."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import excise
from excise.action import Exec
from excise.api import record
from excise.errors import SandboxLost, SpecError
from excise.looking.door import name_of
from excise.looking.find import opened
from excise.looking.names import short
from excise.sandbox import Sandbox
from excise.spec import Secret, Spec

EXCISE = str(Path(sys.executable).parent / "excise")
ADDRESSES = ["namespace", "chroot", "local", "docker", "docker+guest"]
_LIMIT_S = 100.0
DESCRIBE = b"\x0f\0\0\0\x81\xa4type\xa8describe"
"""What who looks in says first, as bytes."""


class Done(NamedTuple):
    code: int
    out: str
    said: str


async def command(*words: str, stdin: bytes = b"") -> Done:
    """The command line, while this process's loop goes on and answers it."""
    process = await asyncio.create_subprocess_exec(
        EXCISE, *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, said = await asyncio.wait_for(process.communicate(stdin), _LIMIT_S)
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), said.decode())


async def listed(id: str) -> dict[str, Any] | None:
    done = await command("ps", "--json")
    assert done.code == 0, done.said
    return next((one for one in json.loads(done.out) if one["id"] == id), None)


@pytest.fixture(params=ADDRESSES)
def address(request: pytest.FixtureRequest, runs_here: Callable[[str], None]) -> str:
    runs_here(request.param)
    return request.param


@pytest.fixture
def namespace(runs_here: Callable[[str], None]) -> str:
    runs_here("namespace")
    return "namespace"


# ---- ps


def test_ps_lists_a_sandbox_while_it_is_open(address: str) -> None:
    async def main() -> None:
        async with Sandbox(address, labels={"task": "a\x1b[31m"}, ttl_s=600) as box:
            name = box.id
            seen = await listed(name)
            assert seen is not None
            assert (seen["address"], seen["image"], seen["owner_pid"]) == (address, "host", os.getpid())
            assert seen["labels"] == {"task": "a\x1b[31m"}
            assert 0 < seen["lease_left_s"] < 600
            if address in ("namespace", "docker+guest"):
                assert seen["processes"] >= 1
                assert seen["memory_bytes"] > 0
            table = (await command("ps")).out
            (row,) = (line for line in table.splitlines() if line.startswith(short(name)))
            assert address in row
            assert "\x1b" not in row
        assert await listed(name) is None

    asyncio.run(main())


def test_ps_says_who_does_not_answer(namespace: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with owner([sys.executable], namespace) as (process, name):
            assert await listed(name) is not None
            process.send_signal(signal.SIGSTOP)
            try:
                done = await command("ps")
                assert f"{short(name)}: its owner (pid {process.pid}) does not answer" in done.said
                shell = await command("shell", name, "--", "true")
                assert shell.code == 125
                assert "does not answer" in shell.said
            finally:
                process.send_signal(signal.SIGCONT)

    asyncio.run(main())


PROGRAM = """
import asyncio, sys
from excise.sandbox import Sandbox

async def main():
    async with Sandbox(sys.argv[1]) as box:
        print(box.id, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@asynccontextmanager
async def owner(python: Sequence[str], address: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Another process that holds a sandbox open, and its id."""
    process = await asyncio.create_subprocess_exec(
        *python, "-c", PROGRAM, address, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process, (await asyncio.wait_for(process.stdout.readline(), _LIMIT_S)).decode().strip()
    finally:
        await asyncio.wait_for(process.communicate(b"\n"), _LIMIT_S)
    assert process.returncode == 0


# ---- shell


def test_shell_passes_streams_and_exit_code_on(address: str) -> None:
    async def main() -> None:
        async with Sandbox(address) as box:
            done = await command("shell", short(box.id), "--", "sh", "-c", "cat; echo no >&2; exit 7", stdin=b"typed")
            assert done == Done(7, "typed", "no\n")
            killed = await command("shell", box.id, "--", "sh", "-c", "kill -9 $$")
            assert killed.code == 137
            assert (await box.run("echo alive")).text == "alive\n"

    asyncio.run(main())


def test_what_is_typed_after_a_commands_end_does_not_cost_its_outcome() -> None:
    async def main() -> None:
        async with Sandbox("local") as box:
            await box.run("true")
            async with opened(box.id) as visit:
                process = await visit.start(Exec(("sh", "-c", "echo said; exit 7")))
                for _ in range(20):  # it ends meanwhile, and its owner has nothing more to say
                    await process.write(b"typed")
                    await asyncio.sleep(0.02)
                seen = await process.wait()
                assert (seen.exit_code, seen.stdout) == (7, b"said\n")

    asyncio.run(main())


def test_shell_is_confined_as_every_action(namespace: str) -> None:
    question = ["grep", "-E", "^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)", "/proc/self/status"]

    async def main() -> None:
        async with Sandbox(namespace) as box:
            own = (await box.run(question)).text
            assert "NoNewPrivs:\t1" in own
            assert (await command("shell", box.id, "--", *question)).out == own
            assert (
                await command("shell", box.id, "--user", "nobody", "--workdir", "/usr", "--", "sh", "-c", "id -u; pwd")
            ).out == ("65534\n/usr\n")

    asyncio.run(main())


def test_what_the_shell_started_ends_with_it(address: str) -> None:
    async def main() -> None:
        async with Sandbox(address) as box:
            await box.run("sleep 1234 >/dev/null 2>&1 &")
            done = await command("shell", box.id, "--", "sh", "-c", "(setsid sleep 4321 >/dev/null 2>&1 &); echo begun")
            assert done.out == "begun\n", done.said
            assert await running(box) == {"1234"}

    asyncio.run(main())


def test_what_the_shell_started_ends_when_who_looks_is_killed(namespace: str) -> None:
    async def main() -> None:
        async with Sandbox(namespace) as box:
            process = await asyncio.create_subprocess_exec(
                EXCISE,
                "shell",
                box.id,
                "--",
                "sh",
                "-c",
                "setsid sleep 4321 & echo begun; wait",
                stdout=asyncio.subprocess.PIPE,
            )
            assert process.stdout is not None
            assert await asyncio.wait_for(process.stdout.readline(), _LIMIT_S) == b"begun\n"
            async with asyncio.timeout(_LIMIT_S):
                while await running(box) != {"4321"}:  # it is a shell for a moment
                    await asyncio.sleep(0.05)
            process.kill()
            await process.wait()
            async with asyncio.timeout(_LIMIT_S):
                while await running(box):
                    await asyncio.sleep(0.05)

    asyncio.run(main())


async def running(box: Sandbox) -> set[str]:
    """How long each `sleep` of ours in the sandbox wants to: seen by its argument, as /proc shows it here or there."""
    script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null"
    # `chroot` has no /proc, and no processes of its own.
    listing = "\n".join(_command_lines()) if "chroot" in box.id else (await box.run(script)).text
    return {line.split()[1] for line in listing.splitlines() if line.strip() in ("sleep 1234", "sleep 4321")}


def _command_lines() -> list[str]:
    lines: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
        except OSError:
            continue
    return lines


def test_looking_is_in_no_trace(namespace: str) -> None:
    async def main() -> None:
        with record() as trace:
            async with Sandbox(namespace) as box:
                await box.run("true")
                assert (await command("shell", box.id, "--", "true")).code == 0
        assert [span.name for span in trace.spans if span.sandbox].count("action") == 1

    asyncio.run(main())


# ---- cp


def test_cp_there_and_back(address: str, tmp_path: Path) -> None:
    source = tmp_path / "tree"
    (source / "below").mkdir(parents=True)
    (source / "below" / "program").write_bytes(b"\0\xff" * 200_000)
    (source / "below" / "program").chmod(0o755)
    (source / "link").symlink_to("/etc/passwd")

    async def main() -> None:
        async with Sandbox(address) as box:
            place = (await box.run("pwd")).text.strip() if address == "local" else "/srv"
            await box.run(["mkdir", "-p", place])
            assert (await command("cp", str(source), f"{box.id}:{place}")).code == 0
            assert (await command("cp", str(source), f"{box.id}:{place}/named")).code == 0
            seen = await box.run(f"cd {place}; readlink named/link; stat -c %a named/below/program; ls")
            assert seen.text.split() == ["/etc/passwd", "755", "named", "tree"]
            (tmp_path / "back").mkdir()
            assert (await command("cp", f"{box.id}:{place}/named", str(tmp_path / "back"))).code == 0
            assert (await command("cp", f"{box.id}:{place}/named/below/program", str(tmp_path / "one"))).code == 0
            missing = await command("cp", f"{box.id}:{place}/nothing", str(tmp_path / "back"))
            assert missing.code == 1
            assert "No such file" in missing.said
            nowhere = await command("cp", str(source), f"{box.id}:{place}/no/where")
            assert nowhere.code == 2
            assert "make it first" in nowhere.said

    asyncio.run(main())
    assert (tmp_path / "back" / "named" / "below" / "program").read_bytes() == b"\0\xff" * 200_000
    assert (tmp_path / "back" / "named" / "link").readlink() == Path("/etc/passwd")
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "one", "tree"]


def test_cp_of_tar_streams(namespace: str) -> None:
    async def main() -> None:
        async with Sandbox(namespace) as box, Sandbox(namespace) as other:
            await box.run("mkdir -p /srv/d && echo text >/srv/d/file")
            out = await asyncio.create_subprocess_exec(EXCISE, "cp", f"{box.id}:/srv/d", "-", stdout=asyncio.subprocess.PIPE)
            tar, _ = await asyncio.wait_for(out.communicate(), _LIMIT_S)
            assert (await command("cp", "-", f"{other.id}:/srv", stdin=tar)).code == 0
            assert await other.read("/srv/d/file") == b"text\n"

    asyncio.run(main())


# ---- diff


def test_a_tree_that_is_refused_is_one_sentence(namespace: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Sandbox(namespace) as box:
            await box.run("mkdir /deep; cd /deep; for i in $(seq 600); do mkdir a; cd a; done; head -c 9000000 /dev/zero > x")
            refused = await command("cp", f"{box.id}:/deep", str(tmp_path))
            assert refused.code == 2
            assert refused.said.startswith("excise: the sandbox sent 'deep/a/a")
            assert refused.said.count("\n") == 1, refused.said[-2000:]

    asyncio.run(main())


def test_diff_of_a_name_that_is_no_text(namespace: str) -> None:
    async def main() -> None:
        async with Sandbox(namespace) as box:
            await box.run("mkdir -p /srv; echo inside > $(printf '/srv/\\377')", timeout_s=20)
            shown = await command("diff", box.id, "--under", "/srv")
            assert shown.code == 0, shown.said
            patch = await command("diff", box.id, "--under", "/srv", "--patch")
            assert patch.code == 0, patch.said
            assert '+++ "b/\\377"\n@@ -0,0 +1 @@\n+inside\n' in patch.out

    asyncio.run(main())


def test_diff_is_the_owners_own(address: str) -> None:
    async def main() -> None:
        async with Sandbox(address) as box:
            able = "start" in (await box._substrate.probe()).diff  # pyright: ignore
            await box.run("mkdir -p /srv/d; echo text >/srv/d/file") if able else None
            done = await command("diff", box.id, "--under", "/srv")
            if not able:
                assert (done.code, f"{address} does not have diff" in done.said) == (2, True), done
                return
            assert "A /srv/d/file" in done.out.splitlines()
            patch = await command("diff", box.id, "--under", "/srv", "--patch")
            assert "+text" in patch.out.splitlines()

    asyncio.run(main())


# ---- logs


def test_logs_tell_what_was_done_and_printed_without_secrets(
    namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXCISE_JOURNAL", str(tmp_path / "journals"))
    ids: list[str] = []

    async def main() -> None:
        async with Sandbox(namespace, Spec(secrets={"TOKEN": Secret("hunter2")})) as box:
            ids.append(box.id)
            await box.run("echo $TOKEN; echo -e '\\033[31mred'; exit 3")
            process = await box.start("echo streamed; printf hun; sleep 0.3; echo ter2")
            _ = [event async for event in process.events()]
            await box.run("printf %065533d 0; echo hunter2")  # whose end is kept, and begins in the secret
            following = asyncio.create_task(command("logs", "-f", box.id))
            while not _followers(box):
                await asyncio.sleep(0.01)
            await box.write("/srv/late", b"hunter2")
            assert not following.done()
        done = await following
        assert done.code == 0, done.said
        lines = done.out.splitlines()
        assert lines[0] == "# started from host"
        assert {"***", "[exit code 3]", "streamed", "$ (write /srv/late)", "# close"} <= set(lines)
        assert "\x1b" not in done.out
        assert "ter2" not in done.out.replace("echo ter2", "").replace("echo hunter2", "").replace("echo ***", "")

    asyncio.run(main())
    (file,) = (tmp_path / "journals").iterdir()
    assert b"hunter2" not in file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    after = asyncio.run(command("logs", short(ids[0])))
    assert "$ (write /srv/late)" in after.out.splitlines()
    assert asyncio.run(command("logs", str(file))).out == after.out


def _followers(box: Sandbox) -> bool:
    return bool(box._recorder._followers)  # pyright: ignore


def test_logs_without_a_journal_say_how_to_have_one(namespace: str) -> None:
    async def main() -> None:
        async with Sandbox(namespace) as box:
            done = await command("logs", box.id)
            assert done.code == 2
            assert "EXCISE_JOURNAL" in done.said

    asyncio.run(main())


# ---- rm, and who is not there


def test_rm_ends_it_and_its_owner_loses_it(address: str) -> None:
    async def main() -> None:
        async with Sandbox(address) as box:
            assert await command("rm", short(box.id)) == Done(0, "", "")
            with pytest.raises(excise.SandboxLost):
                await box.run("true")
            assert await listed(box.id) is None

    asyncio.run(main())


@pytest.mark.parametrize("words", [["shell"], ["diff"], ["logs"], ["rm"], ["cp", ".", "/tmp"]])
def test_an_id_that_is_not_there_is_one_sentence(words: list[str]) -> None:
    verb, *rest = words
    given = "feedfacefeed:/tmp" if verb == "cp" else "feedfacefeed"
    done = asyncio.run(command(verb, given, *rest[:1]))
    assert done.code == 2
    assert done.said == "excise: no live sandbox of yours is called 'feedfacefeed': `excise ps` lists them\n"


# ---- who may


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_is_not_let_in() -> None:
    knock = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(b'\\0' + sys.argv[1].encode());"
        f"s.sendall({DESCRIBE!r}); print(len(s.recv(4)))"
    )

    async def answers(id: str, **who: Any) -> str:
        name = name_of(0, os.getpid(), id)[1:].decode()
        process = await asyncio.create_subprocess_exec(
            "/usr/bin/python3", "-c", knock, name, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, **who
        )
        out, said = await asyncio.wait_for(process.communicate(), _LIMIT_S)
        return (out + said.splitlines()[-1] if said else out).decode()

    async def main() -> None:
        async with Sandbox("local") as box:
            assert await answers(box.id) == "4\n"
            refused = await answers(box.id, user=65534, group=65534, extra_groups=[])
            assert refused == "0\n" or "ConnectionResetError" in refused or "BrokenPipeError" in refused, refused

    asyncio.run(main())


def test_a_sandbox_with_the_hosts_network_is_not_let_in(runs_here: Callable[[str], None]) -> None:
    """`chroot` shares network and user with its owner: only what it sees of the files tells it apart."""
    runs_here("chroot")
    knock = (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect({!r}); s.settimeout(9); s.sendall({!r}); print(s.recv(4))"
    )

    async def main() -> None:
        async with Sandbox("local") as other, Sandbox("chroot") as box:
            script = knock.format(name_of(os.geteuid(), os.getpid(), other.id), DESCRIBE)
            own = await other.run(["/usr/bin/python3", "-c", script])
            assert own.text != "b''\n", "from outside, the owner answers"
            assert own.ok, own.text
            seen = await box.run(["/usr/bin/python3", "-c", script])
            assert seen.text == "b''\n" or "ConnectionResetError" in seen.text or "BrokenPipeError" in seen.text, seen.text

    asyncio.run(main())


@pytest.fixture
def ordinary_user(must_work: Callable[[str, str], None]) -> Generator[list[str]]:
    """The words that start Python as an ordinary user, who has no range of uids."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root makes users")
    name = f"excise-l{os.getpid()}"
    no_ranges = ["-K", "SUB_UID_COUNT=0", "-K", "SUB_GID_COUNT=0"]
    subprocess.run(["useradd", "--create-home", *no_ranges, name], check=True, timeout=30)
    try:
        home = Path(f"~{name}").expanduser()
        uid = home.stat().st_uid
        words = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", "-i", f"HOME={home}", f"TMPDIR={home}"]
        words += ["PATH=/usr/bin:/bin", f"PYTHONPATH={Path(excise.__file__).parents[1]}:{Path(msgspec.__file__).parents[1]}"]
        for python in (sys.executable, "/usr/bin/python3"):
            if subprocess.run([*words, python, "-c", "import excise"], check=False, timeout=30).returncode == 0:
                yield [*words, python]
                return
        must_work("user", "an ordinary user cannot run Python with our packages")
    finally:
        subprocess.run(["userdel", "--remove", name], check=True, timeout=30, stderr=subprocess.DEVNULL)


def test_an_ordinary_user_looks_into_his_own_and_root_into_all(namespace: str, ordinary_user: list[str]) -> None:
    async def as_user(*words: str) -> tuple[int | None, str, str]:
        program = "import sys; from excise.cli import main; sys.exit(main())"
        process = await asyncio.create_subprocess_exec(
            *ordinary_user, "-c", program, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, said = await asyncio.wait_for(process.communicate(), _LIMIT_S)
        return process.returncode, out.decode(), said.decode()

    async def main() -> None:
        async with Sandbox(namespace) as roots, owner(ordinary_user, namespace) as (_, name):
            code, out, said = await as_user("ps", "--json")
            assert code == 0, said
            assert [one["id"] for one in json.loads(out) if one["address"] == namespace] == [name]
            assert (await as_user("shell", name, "--", "sh", "-c", "id -u; exit 4"))[:2] == (4, "0\n")
            code, _, said = await as_user("shell", roots.id, "--", "true")
            assert code == 2
            assert "no live sandbox of yours" in said
            assert (await listed(name) or {}).get("uid") not in (None, 0)
            assert (await command("shell", name, "--", "echo", "seen")).out == "seen\n"

    asyncio.run(main())


def test_a_visitor_asks_the_sandbox_whether_it_lives_and_makes_it_nothing_else(address: str) -> None:
    async def body() -> None:
        async with Sandbox(address) as box:
            await box.run("true")
            async with opened(box.id) as visit:
                await visit.alive()
                with pytest.raises(SpecError, match="its owner's to say"):
                    await visit.adopt(Spec())
                await box.close()
                with pytest.raises(SandboxLost):
                    await visit.alive()

    asyncio.run(body())

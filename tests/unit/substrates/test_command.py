"""Recipes of a user's own: trivial tools, and what becomes of a sandbox when one of their commands fails."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from excise import CreateError, Sandbox, Spec, SpecError
from excise.errors import SubstrateError
from excise.host.descendants import Tree
from excise.registry import make
from excise.storage.home import state_dir

RECIPE = """
name = "{name}"
programs = ["env", "sh"]
remedy = "apt-get install coreutils"
version = ["${{sh}}", "-c", "{version}"]
image = "name"
environment = "inherited"
create = {create}
exec = ["${{env}}", "-C", "${{state}}", "@argv"]
close = [["${{sh}}", "-c", "{close}"]]

[capabilities]
stream = true
"""


def recipe(place: Path, *, name: str = "my-own", version: str = ":", create: tuple[str, ...] = (":",), close: str = ":") -> str:
    """The address of a substrate whose sandboxes are directories."""
    commands = [["${sh}", "-c", script] for script in create]
    path = place / "own.toml"
    path.write_text(RECIPE.format(name=name, version=version, create=commands, close=close))
    return f"command?file={path}"


def left(name: str = "my-own") -> list[str]:
    return [path.name for path in state_dir().iterdir() if path.name.startswith(name)]


def test_a_tool_with_nothing_to_say_of_its_version_works(tmp_path: Path) -> None:
    async def check() -> None:
        substrate = make(recipe(tmp_path))
        assert (await substrate.probe()).versions == {"my-own": ""}
        async with Sandbox(substrate) as box:
            assert (await box.run("echo hi")).stdout == b"hi\n"
        await substrate.close()

    asyncio.run(check())


@pytest.mark.parametrize("name", ["../up", "", ".hidden", "a/b"])
def test_a_name_that_is_no_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="file names"):
        make(recipe(tmp_path, name=name))


def test_a_working_directory_nobody_makes_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        with pytest.raises(SpecError, match=r"makes no \$\{workdir\}"):
            async with Sandbox(recipe(tmp_path), Spec(workdir="/srv")):
                pass
        # Where a create command names it, it is the tool's to make.
        async with Sandbox(recipe(tmp_path, create=("test ${workdir} = /srv",)), Spec(workdir="/srv")):
            pass

    asyncio.run(check())


def test_a_create_command_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    async def check() -> None:
        with pytest.raises(CreateError, match="broken"):
            async with Sandbox(recipe(tmp_path, create=("sleep 1000 & : > ${state}/half", "echo broken; exit 3"))):
                pass

    asyncio.run(check())
    assert left() == []
    assert Tree().below((os.getpid(),)) == []


def test_a_create_command_that_is_given_up_comes_to_its_end_before_the_close_command(tmp_path: Path) -> None:
    said, begun = tmp_path / "said", tmp_path / "begun"
    os.mkfifo(begun)

    async def check() -> None:
        create = f"echo > {begun}; sleep 0.3; echo created >> {said}"
        substrate = make(recipe(tmp_path, create=(create,), close=f"echo closed >> {said}"))
        opening = asyncio.create_task(Sandbox(substrate).open())
        await asyncio.to_thread(begun.read_bytes)  # by now it sleeps
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await substrate.close()

    asyncio.run(check())
    assert said.read_text() == "created\nclosed\n"
    assert left() == []


def test_a_close_command_that_fails_is_told_and_gc_can_try_again(tmp_path: Path) -> None:
    address = recipe(tmp_path, close="echo stuck; exit 4")

    async def check() -> None:
        with pytest.raises(SubstrateError, match="stuck"):
            async with Sandbox(address):
                pass

    asyncio.run(check())
    (directory,) = left()
    # As if its owner were gone.
    state = state_dir()
    (state / directory).rename(state / "my-own-999999999-1-abcdefabcdef")
    done = tmp_path / "done"
    assert asyncio.run(collected(recipe(tmp_path, close=f": > {done}"))) == ("my-own-999999999-1-abcdefabcdef",)
    assert done.exists()
    assert left() == []


async def collected(address: str) -> tuple[str, ...]:
    substrate = make(address)
    try:
        return await substrate.collect()
    finally:
        await substrate.close()


def test_close_commands_run_even_when_the_lease_has_ended(tmp_path: Path) -> None:
    done = tmp_path / "done"

    async def check() -> None:
        async with Sandbox(recipe(tmp_path, close=f": > {done}"), ttl_s=0.3):
            await asyncio.sleep(0.6)

    asyncio.run(check())
    assert done.exists()
    assert left() == []


def test_another_recipe_whose_name_begins_with_local_is_not_locals(tmp_path: Path) -> None:
    async def check() -> None:
        async with Sandbox(recipe(tmp_path, name="local-x")) as box:
            assert await collected("local") == ()
            assert (await box.run("true")).ok

    asyncio.run(check())


RUNC = """
import asyncio
from excise import Sandbox
async def main():
    async with Sandbox("runc") as box:
        print(box.id, flush=True)
        await box.run("sleep 1000")
asyncio.run(main())
"""


def test_collect_takes_all_of_a_killed_clients_container(runs_here: Callable[[str], None]) -> None:
    runs_here("runc")
    with subprocess.Popen([sys.executable, "-c", RUNC], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        name = client.stdout.readline().strip()
        client.send_signal(signal.SIGKILL)
    assert name in asyncio.run(collected("runc"))
    assert left("runc") == []
    assert [str(path) for path in Path("/sys/fs/cgroup").rglob(name)] == []

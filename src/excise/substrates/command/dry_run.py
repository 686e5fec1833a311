"""A recipe without its consequences: every command rendered, and read by its own program where that can be told to do nothing.

For recipes that cost money or an account to run. What is read right may still fail; what is read wrong cannot work.
"""

import asyncio
import os
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from excise.errors import SpecError
from excise.handles import finish
from excise.substrates.command.recipe import Filling, Parse, Recipe

_PARSE_S = 60.0
_SAID = 400
"""Of what a program prints about a command line that it cannot read, the first so many characters."""
_SAMPLE_ENV = ({"name": "NAME", "value": "a value"},)
_NO_CREDENTIALS = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_DEFAULT_REGION": "us-east-1", "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
"""A program that only reads a command line needs no account, and must not look for one on the network."""


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """One command as it would be run."""

    part: str
    """create 1, exec, close 1, ..."""
    argv: tuple[str, ...]
    read: bool | None = None
    """Whether its program could read it; None: nobody was asked."""
    by: str = ""
    """Which program was asked, and what it said where it could not."""


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """The whole recipe."""

    name: str
    untried: str
    missing: tuple[str, ...]
    """Programs that are not installed here: their commands are rendered, and read by nobody."""
    commands: tuple[Rendered, ...]

    @property
    def wrong(self) -> bool:
        return any(one.read is False for one in self.commands)


async def dry_run(recipe: Recipe, image: str) -> DryRun:
    """Nothing outlives it: the sandbox's directory is a temporary one, and no command of the recipe is run as it is."""
    found = {name: shutil.which(name) for name in recipe.programs}
    programs = {name: path or name for name, path in found.items()}
    with tempfile.TemporaryDirectory(prefix="excise-dry-run-") as state:
        filling = _filling(recipe, programs, state, image)
        for name in recipe.files:
            path = Path(state) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(filling.file(name))
        commands = [
            await _asked(recipe, part, argv, {name: path for name, path in found.items() if path is not None}, state)
            for part, argv in _rendered(recipe, filling)
        ]
    missing = tuple(name for name, path in found.items() if path is None)
    return DryRun(name=recipe.name, untried=recipe.untried, missing=missing, commands=tuple(commands))


def _filling(recipe: Recipe, programs: Mapping[str, str], state: str, image: str) -> Filling:
    one = {**programs, "state": state, "id": f"{recipe.name}-dry-run", "image": image, "workdir": "/", "cwd": "/", "root": "/"}
    return Filling(recipe, one, {"binds": (), "env": _SAMPLE_ENV, "user": ()})


def _rendered(recipe: Recipe, filling: Filling) -> list[tuple[str, list[str]]]:
    found = [(part, filling.argv(argv)) for part, argv in (("version", recipe.version), ("probe", recipe.probe)) if argv]
    found += [(f"create {number}", filling.argv(argv)) for number, argv in enumerate(recipe.create, 1)]
    found.append(("exec", filling.argv(recipe.exec, ["echo", "two words"])))
    return [*found, *((f"close {number}", filling.argv(argv)) for number, argv in enumerate(recipe.close, 1))]


async def _asked(recipe: Recipe, part: str, argv: list[str], programs: Mapping[str, str], state: str) -> Rendered:
    for name, parse in recipe.parse.items():
        path = programs.get(name)
        if path is not None and path in argv and part not in ("version", "probe"):
            words = argv[argv.index(path) + 1 :]
            # What follows is the sandbox's own command, and nothing that the program reads.
            words = words[: words.index("--")] if "--" in words else words
            right, said = await _read(_command(path, words, parse), parse, state)
            return Rendered(part=part, argv=tuple(argv), read=right, by=name if right else f"{name}: {said}")
    return Rendered(part=part, argv=tuple(argv))


def _command(path: str, words: Sequence[str], parse: Parse) -> list[str]:
    if parse.whole:
        return [path, *(word.replace("${line}", shlex.join(words)) for word in parse.whole)]
    return [path, *parse.before, *words, *parse.after]


async def _read(argv: list[str], parse: Parse, state: str) -> tuple[bool, str]:
    """Whether the program takes the command line, and what it says."""
    if not (parse.whole or parse.before or parse.after):
        raise SpecError("a [parse] table that adds nothing would run the command: say before, after or whole")
    env = {**os.environ, **_NO_CREDENTIALS, "HOME": state, "CLOUDSDK_CONFIG": state}
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=env,
    )
    try:
        async with asyncio.timeout(_PARSE_S):
            said, _ = await process.communicate()
    except BaseException as error:
        process.kill()
        await finish(process.wait())
        if isinstance(error, TimeoutError):
            return False, f"it did not end in {_PARSE_S:g} s"
        raise
    text = said.decode("utf-8", "replace")
    right = process.returncode == 0 and parse.expect in text
    return right, " ".join(text[-_SAID:].split())

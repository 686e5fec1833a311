"""A substrate as command lines: what the TOML file may say, and how its placeholders are filled.

`${name}` stands for one value inside an argument or a file; an argument that is just `@name` stands for as many
arguments as there are values: @argv; and @env (name, value), @binds (source, target) and @user
(user, uid, gid; one or none), as [repeat.env] and so on spell each of theirs.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from excise.errors import SpecError
from excise.substrate import Capabilities, Term

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACEHOLDER = re.compile(r"\$\{(\w+)\}")

Argv = tuple[str, ...]


class Repeat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How each of several values is spelled: as arguments, and as text in a file."""

    argv: Argv = ()
    text: str = ""


class Parse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a program is made to read a command line and do nothing: for a dry run."""

    before: Argv = ()
    """Right after the program."""
    after: Argv = ()
    """At the end."""
    whole: Argv = ()
    """In place of the command line, which `${line}` is, as a shell would be given it."""
    expect: str = ""
    """What it prints if the command line is right; empty: its exit code says so."""


class _Declared(Capabilities, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capabilities as a recipe writes them: a misspelt one is refused, not left undeclared."""

    adopts: frozenset[Term] = frozenset({"secrets"})
    """Each exec is given its variables."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The TOML file."""

    name: str
    programs: Argv
    """Looked up on PATH before anything runs; `${NAME}` is where each was found."""
    remedy: str
    """What to do where a program is missing or the probe fails: one sentence or command."""
    version: Argv = ()
    probe: Argv = ()
    """Must succeed for the substrate to count as there."""
    root: bool = False
    """Only root can run it."""
    image: Literal["root", "name"] = "root"
    """root: `${root}` is a directory with the image's files. name: `${image}` is passed on as it is."""
    create: tuple[Argv, ...] = ()
    exec: Argv
    close: tuple[Argv, ...] = ()
    kill: Literal["tree", "marker"] = "tree"
    """tree: ending the exec command ends all that it started. marker: they are sought and killed inside."""
    depth: int = 0
    """How many processes stand between the exec command and the program: signals go past them. 0: it passes them on."""
    environment: Literal["inherited", "arguments"] = "arguments"
    """inherited: the exec command runs with the action's variables. arguments: @env passes them."""
    directories: tuple[str, ...] = ()
    """Made below `${state}`, the sandbox's own directory, before create."""
    files: Mapping[str, str] = {}
    """Written below `${state}` before create; in *.json files values are escaped."""
    repeat: Mapping[str, Repeat] = {}
    untried: str = ""
    """Nobody has run it, and why: a dry run and every report of one say so."""
    parse: Mapping[str, Parse] = {}
    """By program."""
    capabilities: _Declared = _Declared()


def load(path: Path) -> Recipe:
    try:
        recipe = msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise SpecError(f"{path} is not a command substrate's TOML: {error}; docs/recipes.md has every field") from None
    if not _NAME.fullmatch(recipe.name):
        raise SpecError(f"{path}: name = {recipe.name!r} becomes part of file names; use letters, digits, and . _ - after them")
    return recipe


class Filling:
    """Values for a recipe's placeholders."""

    def __init__(self, recipe: Recipe, one: Mapping[str, str], many: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
        self._recipe = recipe
        self._one = one
        self._many = many

    def argv(self, template: Argv, arguments: Sequence[str] = ()) -> list[str]:
        """The command line that `template` stands for; `arguments` take the place of @argv."""
        filled: list[str] = []
        for word in template:
            if word == "@argv":
                filled += arguments
            elif word.startswith("@"):
                name = word[1:]
                filled += [self._fill(part, values) for values in self._values(name) for part in self._recipe.repeat[name].argv]
            else:
                filled.append(self._fill(word, {}))
        return filled

    def file(self, name: str) -> str:
        """A file's text; values repeated in it are joined as their `text` spells them."""
        escape = name.endswith(".json")
        repeated = {
            key: "".join(self._fill(repeat.text, values, escape=escape) for values in self._values(key))
            for key, repeat in self._recipe.repeat.items()
            if repeat.text
        }
        return self._fill(self._recipe.files[name], repeated, escape=escape, verbatim=repeated.keys())

    def _values(self, name: str) -> Sequence[Mapping[str, str]]:
        if name not in self._recipe.repeat or name not in self._many:
            raise SpecError(
                f"{self._recipe.name}: @{name} needs a [repeat.{name}] table; there may be: {', '.join(self._many)}"
            )
        return self._many[name]

    def _fill(self, text: str, more: Mapping[str, str], *, escape: bool = False, verbatim: Collection[str] = ()) -> str:
        known = {**self._one, **more}

        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name not in known:
                raise SpecError(f"{self._recipe.name}: ${{{name}}} is not a placeholder; there are: {', '.join(sorted(known))}")
            return known[name] if name in verbatim or not escape else json.dumps(known[name])[1:-1]

        return _PLACEHOLDER.sub(value, text)

"""What rollouts ask for: specs from a file, or a mix of ours that needs neither a network nor an image."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from excise.action import Shell
from excise.errors import SpecError
from excise.spec import Limits, Secret, Spec, Stage, Step

CLONE_S, INSTALL_S = 1.0, 2.0
"""What a clone and an install of the built-in mix take: they sleep."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A spec with a name, and how often it is asked for beside the others."""

    name: str
    spec: Spec
    weight: float = 1.0
    owner: str = ""


def mix(count: int, zipf: float, image: str = "host") -> tuple[Wanted, ...]:
    """`count` specs, the n-th asked for in proportion to 1 / n ** zipf; of every other repository there are two commits."""
    if count < 1:
        raise SpecError(f"--mix {count} is no mix: it has at least one spec")
    if not 0 <= zipf < 10:
        raise SpecError(f"--zipf {zipf:g}: the exponent is from 0 (all alike) to 10; 0.8 is usual")
    found: list[Wanted] = []
    repository = 0
    while len(found) < count:
        for commit in ("a", "b")[: 1 + repository % 2]:
            if len(found) < count:
                weight = 1 / (len(found) + 1) ** zipf
                found.append(
                    Wanted(name=f"r{repository}@{commit}", spec=_made_up(f"r{repository}", commit, image), weight=weight)
                )
        repository += 1
    return tuple(found)


def _made_up(repository: str, commit: str, image: str) -> Spec:
    """A clone and an install that take their time and leave a file each; a sibling commit needs a tenth of the clone."""
    env = {"repo": repository, "at": commit}
    place = 'mkdir -p "mix-$repo" && printf %s "$at" > "mix-$repo/commit"'
    clone = Shell(f"sleep {CLONE_S:g} && {place}", env=env)
    switch = Shell(f"sleep {CLONE_S / 10:g} && {place}", env=env)
    install = Shell(f'sleep {INSTALL_S:g} && printf done > "mix-{repository}/installed"')
    return Spec(
        image=image,
        steps=(
            Step("clone", (clone,), Stage.REPO, of=f"mix:{repository}", switch=(switch,)),
            Step("install", (install,), Stage.DEPS, lock=f"mix:{repository}"),
        ),
    )


def read_one(path: Path) -> tuple[Wanted, ...]:
    """The one spec of a JSON or TOML file."""
    return (Wanted(name=path.stem, spec=as_spec(_parsed(path), str(path))),)


def read_many(path: Path) -> tuple[Wanted, ...]:
    """Lines of JSON, or `[[specs]]` of a TOML file: each has a name and a spec, and may have a weight and an owner."""
    if path.suffix == ".toml":
        given = _parsed(path).get("specs")
        rows = list(enumerate(cast(list[Any], given), 1)) if isinstance(given, list) else []
    else:
        rows = json_lines(path)
    if not rows:
        raise SpecError(f'{path} has no spec: write [[specs]] tables, or lines as {{"name": "a", "spec": {{"image": "host"}}}}')
    found = tuple(_wanted(row, f"{path} spec {number}") for number, row in rows)
    names = [one.name for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SpecError(f"{path} has two specs called {twice[0]!r}: give each a name of its own")
    return found


def _wanted(row: object, where: str) -> Wanted:
    if not isinstance(row, dict):
        raise SpecError(f"{where} is not a table with a name and a spec")
    given = cast(dict[str, Any], row)
    spec = as_spec(given.get("spec", {}), where)
    try:
        found = msgspec.convert({**given, "spec": spec}, Wanted)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: {error}") from None
    if not 0 < found.weight < float("inf"):
        raise SpecError(f"{where}: its weight is {found.weight:g}, and must be above 0")
    return found


def as_spec(given: object, where: str) -> Spec:
    """A Spec from what a file says; a key that no spec has is refused, for it would be ignored."""
    if isinstance(given, dict):
        spec = cast(dict[str, Any], given)
        _refuse_unknown(spec, Spec, where)
        _refuse_unknown(spec.get("limits"), Limits, f"{where}: limits")
        steps: object = spec.get("steps")
        for number, step in enumerate(cast(Sequence[object], steps) if isinstance(steps, list) else (), 1):
            _refuse_unknown(step, Step, f"{where}: step {number}")
    try:
        return msgspec.convert(given, Spec, dec_hook=_secret)
    except msgspec.ValidationError as error:
        raise SpecError(f"{where}: {error}") from None


def _refuse_unknown(given: object, kind: type[msgspec.Struct], where: str) -> None:
    if isinstance(given, Mapping):
        unknown = sorted(set(cast(Mapping[str, Any], given)) - set(kind.__struct_fields__))
        if unknown:
            raise SpecError(f"{where}: {kind.__name__} has no {unknown[0]!r}; it has: {', '.join(kind.__struct_fields__)}")


def _secret(kind: type, given: object) -> object:
    """A file says where a secret is, never what it is."""
    if kind is not Secret:
        raise NotImplementedError(f"{kind} is not read from files")
    name = given.removeprefix("env:") if isinstance(given, str) and given.startswith("env:") else None
    if name is None:
        raise SpecError("a secret's value is in no file: write env:NAME, and it is taken from that variable")
    if name not in os.environ:
        raise SpecError(f"the secret env:{name} is not there: set the variable {name}")
    return Secret(os.environ[name])


def _parsed(path: Path) -> dict[str, Any]:
    text = read_text(path)
    try:
        found: object = tomllib.loads(text) if path.suffix == ".toml" else msgspec.json.decode(text)
    except (tomllib.TOMLDecodeError, msgspec.DecodeError) as error:
        raise SpecError(f"{path} is not {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}") from None
    if not isinstance(found, dict):
        raise SpecError(f'{path} is not one spec: it looks like {{"image": "host"}}')
    return cast(dict[str, Any], found)


def json_lines(path: Path) -> list[tuple[int, Any]]:
    """Each line that is not empty, with its number."""
    found: list[tuple[int, Any]] = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            try:
                found.append((number, msgspec.json.decode(line)))
            except msgspec.DecodeError as error:
                raise SpecError(f"{path} line {number} is not JSON: {error}") from None
    return found


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text: name another file") from None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}; name another file") from None

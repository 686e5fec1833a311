"""The substrate a recipe describes."""

import asyncio
import os
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from excise.action import Exec
from excise.errors import SpecError, SubstrateError
from excise.handles import finish
from excise.host.handle import HostHandle
from excise.host.sandboxes import OnThisMachine, Sandboxes
from excise.spec import Spec
from excise.storage.image import resolve
from excise.substrate import Capabilities, Snapshot, require, unsupported
from excise.substrates.command.dry_run import DryRun, dry_run
from excise.substrates.command.handle import CommandHandle, Terms
from excise.substrates.command.recipe import Filling, load

_PROBE_S = 20.0
_ORPHAN_S = 120.0
"""For the close commands of a sandbox whose own keeper is gone."""


class CommandSubstrate(OnThisMachine[CommandHandle]):
    """Any command-line tool that can run a program in a sandbox."""

    def __init__(self, *, file: str) -> None:
        self._recipe = load(Path(file))
        self.address = f"command?file={file}"
        self._sandboxes = Sandboxes[CommandHandle](self._recipe.name)

    # ---- what is there

    async def probe(self) -> Capabilities:
        """The programs are looked for and the recipe's probe is run; its version is kept."""
        programs = self._programs()
        if self._recipe.root and os.geteuid() != 0:
            raise SubstrateError(f"{self._recipe.name} needs root: {self._recipe.remedy}")
        filling = Filling(self._recipe, programs, {})
        if self._recipe.probe:
            await self._try(filling.argv(self._recipe.probe))
        versions: dict[str, str] = {}
        if self._recipe.version:
            said = await self._try(filling.argv(self._recipe.version))
            versions[self._recipe.name] = said.partition("\n")[0]
        return msgspec.structs.replace(self._recipe.capabilities, versions=versions)

    def _programs(self) -> dict[str, str]:
        found = {name: shutil.which(name) for name in self._recipe.programs}
        missing = sorted(name for name, path in found.items() if path is None)
        if missing:
            raise SubstrateError(f"{', '.join(missing)} is not on PATH: {self._recipe.remedy}")
        return {name: path for name, path in found.items() if path is not None}

    async def _try(self, argv: list[str]) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
        except OSError as error:
            raise SubstrateError(f"{argv[0]} does not start ({error.strerror}): {self._recipe.remedy}") from None
        try:
            async with asyncio.timeout(_PROBE_S):
                said, _ = await process.communicate()
        except BaseException as error:
            process.kill()
            await finish(process.wait())
            if isinstance(error, TimeoutError):
                raise SubstrateError(f"{argv[0]} did not end in {_PROBE_S:g} s: {self._recipe.remedy}") from None
            raise
        text = said.decode("utf-8", "replace").strip()
        if process.returncode:
            raise SubstrateError(
                f"{self._recipe.name} does not work here ({text or process.returncode}): {self._recipe.remedy}"
            )
        return text

    async def dry_run(self, image: str) -> DryRun:
        """Every command as it would be run, read by its own program where that can be told to do nothing. Nothing is made."""
        return await dry_run(self._recipe, image)

    # ---- sandboxes

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> CommandHandle:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots to start from")
        require(start, self._recipe.capabilities, self.address)
        programs = self._programs()
        terms = await self._terms(start, programs)

        async def make(directory: Path) -> CommandHandle:
            host = await self._host(directory, lease_s)
            named = {**terms.one, "state": str(directory), "id": directory.name}
            handle = CommandHandle(
                id=directory.name,
                address=self.address,
                recipe=self._recipe,
                terms=msgspec.structs.replace(terms, one=named),
                spec=start,
                host=host,
                another_host=lambda: self._host(directory, _ORPHAN_S),
                on_close=self._sandboxes.forget,
            )
            try:
                self._lay_out(directory, named, terms)
                await handle.create()
            except BaseException:
                await finish(handle.close())
                raise
            return handle

        return await self._sandboxes.once(request_id, deadline_s, make)

    async def _terms(self, spec: Spec, programs: dict[str, str]) -> Terms:
        if self._recipe.image == "name":
            workdir = spec.workdir or "/"
            made_by = [*self._recipe.files.values(), *(word for command in self._recipe.create for word in command)]
            if spec.workdir and not any("${workdir}" in text for text in made_by):
                raise SpecError(
                    f"{self.address} makes no ${{workdir}} in its create commands; leave workdir out, or add it there"
                )
            one = {**programs, "image": spec.image, "workdir": workdir}
            return Terms(one=one, binds=(), workdir=workdir, image_env={}, user=spec.user or "")
        image = await resolve(spec.image)
        workdir = spec.workdir or image.workdir
        # A tool run by root would make a missing one in the image itself, for every later sandbox to see.
        if spec.workdir and not (image.root / spec.workdir.lstrip("/")).is_dir():
            raise SpecError(
                f"{self.address} cannot make {spec.workdir} in a read-only root; leave workdir out, or choose another"
            )
        if image.user is not None and not self._recipe.capabilities.users:
            raise SpecError(f"image {spec.image} runs as user {image.user}, and {self.address} has no users; choose another")
        return Terms(
            one={**programs, "image": spec.image, "root": str(image.root), "workdir": workdir},
            binds=tuple({"source": source, "target": target} for source, target in image.binds),
            workdir=workdir,
            image_env=image.env,
            user=spec.user or image.user or "",
            root=image.root,
        )

    async def _host(self, directory: Path, lease_s: float) -> HostHandle:
        """Where the recipe's commands run: bare processes on this machine, below a keeper of their own."""
        keeper = await self._sandboxes.link.keeper(directory, workdir=str(directory), root=None, lease_s=lease_s, keep=True)
        return HostHandle(
            id=directory.name,
            address=self.address,
            keeper=keeper,
            spec=Spec(),
            capabilities=self._recipe.capabilities,
            image_env={},
            user=None,
            on_close=lambda _: None,
        )

    def _lay_out(self, directory: Path, named: dict[str, str], terms: Terms) -> None:
        for name in self._recipe.directories:
            (directory / name).mkdir(parents=True, exist_ok=True)
        filling = Filling(self._recipe, named, {"binds": terms.binds, "env": (), "user": ()})
        for name in self._recipe.files:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(filling.file(name))

    # ---- care

    async def collect(self) -> tuple[str, ...]:
        """Run the close commands for sandboxes whose owner is gone, and remove their directories."""
        return await self._sandboxes.collect(self._close_orphan)

    async def _close_orphan(self, directory: Path) -> None:
        named: dict[str, Any] = {**self._programs(), "state": str(directory), "id": directory.name}
        host = await self._host(directory, _ORPHAN_S)
        try:
            for command in self._recipe.close:
                argv = Filling(self._recipe, named, {}).argv(command)
                await host.run(Exec(tuple(argv), env={"PATH": os.environ.get("PATH", os.defpath)}, timeout_s=_ORPHAN_S))
        finally:
            await host.close()


def bubblewrap() -> CommandSubstrate:
    return _shipped("bubblewrap")


def runc() -> CommandSubstrate:
    return _shipped("runc")


def _shipped(name: str) -> CommandSubstrate:
    substrate = CommandSubstrate(file=str(files("excise.substrates.command") / "recipes" / f"{name}.toml"))
    substrate.address = name
    return substrate

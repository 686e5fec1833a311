"""`local`: bare processes in a fresh directory. It isolates nothing, and says so."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from excise.errors import SpecError
from excise.host.handle import HostHandle
from excise.host.sandboxes import OnThisMachine, Sandboxes
from excise.spec import Spec
from excise.storage.image import resolve
from excise.substrate import Capabilities, Snapshot, require, unsupported


class LocalSubstrate(OnThisMachine[HostHandle]):
    """The host's own root file system, network and user: for trusted code, tests, and as what others are compared with."""

    address = "local"

    def __init__(self) -> None:
        self._sandboxes = Sandboxes[HostHandle]("local")

    async def probe(self) -> Capabilities:
        return Capabilities(
            adopts=frozenset({"secrets"}),
            stream=True,
            sessions=shutil.which("bash") is not None,
            pty=True,
            background=True,
            signals=True,
            guest_clock=True,
        )

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> HostHandle:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots to start from")
        capabilities = await self.probe()
        require(start, capabilities, self.address)
        if start.workdir is not None:
            raise SpecError("local works in a fresh directory of its own; leave workdir out, or choose another substrate")
        if start.image != "host":
            raise SpecError(f"local runs on the host's own files, not on image {start.image!r}; use chroot or docker for that")

        async def make(directory: Path) -> HostHandle:
            image = await resolve("host")
            workdir = directory / "work"
            try:
                workdir.mkdir()
                (directory / "tmp").mkdir()
                keeper = await self._sandboxes.link.keeper(directory, workdir=str(workdir), root=None, lease_s=lease_s)
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)  # a full disk, Ctrl-C: no keeper is there to remove it
                raise
            return HostHandle(
                id=request_id,
                address=self.address,
                capabilities=capabilities,
                keeper=keeper,
                spec=start,
                image_env={**image.env, "HOME": str(workdir), "TMPDIR": str(directory / "tmp")},
                user=None,
                on_close=self._sandboxes.forget,
            )

        return await self._sandboxes.once(request_id, deadline_s, make)

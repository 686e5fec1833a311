"""`chroot`: the same root file system as the others, and nothing else: the floor that work is measured on.

Each sandbox has an overlay over the image, in a mount namespace that exists only to leave nothing behind. Processes,
network and IPC are the host's; /proc is absent, since the host's own would lead out of the root. Run by root, it is
root: use it for trusted code only. An ordinary user gets the same through a bare user namespace.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from excise.errors import CreateError, SubstrateError
from excise.host.handle import HostHandle
from excise.host.sandboxes import Sandboxes
from excise.spec import Spec
from excise.storage.image import resolve
from excise.substrate import Capabilities, Listed, Snapshot, require, unsupported

_REMEDY = (
    "as root it needs mount and overlayfs; as an ordinary user, user namespaces that may mount: "
    "sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0"
)


class ChrootSubstrate:
    """A chroot into an overlay of the image. It hides files, and that is all."""

    address = "chroot"

    def __init__(self) -> None:
        self._sandboxes = Sandboxes("chroot")

    async def probe(self) -> Capabilities:
        """Found by mounting: an empty root is made and thrown away."""
        trial = await self._sandboxes.once("probe", 30, self._bare_root)
        await trial.close()
        return _capabilities()

    async def _bare_root(self, directory: Path) -> HostHandle:
        lower = directory / "lower"
        lower.mkdir()
        try:
            return await self._open(directory, Spec(), lower=lower, binds=(), env={}, workdir="/work", user=None, lease_s=60)
        except CreateError as error:
            raise SubstrateError(f"chroot cannot mount its root here: {error}; {_REMEDY}") from None

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> HostHandle:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots to start from")
        require(start, _capabilities(), self.address)
        image = await resolve(start.image)

        async def make(directory: Path) -> HostHandle:
            return await self._open(
                directory,
                start,
                lower=image.root,
                binds=image.binds,
                env=image.env,
                workdir=start.workdir if start.workdir is not None else image.workdir,
                user=start.user if start.user is not None else image.user,
                lease_s=lease_s,
            )

        return await self._sandboxes.once(request_id, deadline_s, make)

    async def _open(
        self,
        directory: Path,
        spec: Spec,
        *,
        lower: Path,
        binds: tuple[tuple[str, str], ...],
        env: Mapping[str, str],
        workdir: str,
        user: str | None,
        lease_s: float,
    ) -> HostHandle:
        plan = {
            "lower": str(lower),
            "binds": binds,
            "workdir": workdir,
            "disk_bytes": spec.limits.disk_bytes,
            "inodes": spec.limits.inodes,
        }
        keeper = await self._sandboxes.link.keeper(directory, workdir=workdir, root=plan, lease_s=lease_s)
        return HostHandle(
            id=directory.name,
            address=self.address,
            keeper=keeper,
            spec=spec,
            image_env=env,
            user=user if os.geteuid() == 0 else None,
            on_close=self._sandboxes.forget,
        )

    async def attach(self, id: str) -> HostHandle:
        raise unsupported(self.address, "attach: its sandboxes end with the process that made them")

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        raise unsupported(self.address, "list: its sandboxes end with the process that made them")

    async def discard(self, snapshot: Snapshot) -> None:
        raise unsupported(self.address, "snapshots")

    async def collect(self) -> tuple[str, ...]:
        return await self._sandboxes.collect()

    async def close(self) -> None:
        await self._sandboxes.close()


def _capabilities() -> Capabilities:
    return Capabilities(
        isolates=frozenset({"files"}),
        stream=True,
        sessions=True,
        pty=True,
        users=os.geteuid() == 0,
        background=True,
        signals=True,
        guest_clock=True,
        limits=frozenset({"disk_bytes", "inodes"}),
    )

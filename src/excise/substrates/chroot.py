"""`chroot` and `chroot+guest`: the same root file system as the others, and nothing else: what work is measured on.

Each sandbox has an overlay over the image, in a mount namespace that exists only to leave nothing behind. Processes,
network and IPC are the host's; /proc is absent, since the host's own would lead out of the root. Run by root, it is
root: use it for trusted code only. An ordinary user gets the same through a bare user namespace.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from excise.errors import CreateError, SubstrateError
from excise.guest.programs import program
from excise.handles import finish
from excise.host.guest import KeptGuestHandle, guest_below
from excise.host.handle import HostHandle
from excise.host.link import Keeper
from excise.host.sandboxes import OnThisMachine, Sandboxes
from excise.spec import Spec
from excise.storage.image import resolve
from excise.storage.users import numbers
from excise.substrate import Capabilities, Handle, Snapshot, require, unsupported

_REMEDY = (
    "as root it needs mount and overlayfs; as an ordinary user, user namespaces that may mount: "
    "sysctl -w user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0"
)

H = TypeVar("H", bound=Handle)


class _Chroot(OnThisMachine[H]):
    """An overlay of the image, and a keeper whose processes have it as their root. It hides files, and that is all."""

    address: str

    def __init__(self) -> None:
        self._sandboxes = Sandboxes[H](self.address)

    async def probe(self) -> Capabilities:
        """Found by mounting: a sandbox is made and thrown away."""
        try:
            trial = await self.create(Spec(), deadline_s=30, lease_s=60, labels={}, request_id="probe")
        except CreateError as error:
            raise SubstrateError(f"{self.address} cannot make a sandbox here: {error}; {_REMEDY}") from None
        await trial.close()
        return _capabilities()

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> H:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots to start from")
        require(start, _capabilities(), self.address)
        image = await resolve(start.image)

        workdir = start.workdir if start.workdir is not None else image.workdir
        user = start.user if start.user is not None else image.user
        # An ordinary user has one uid to give: it is the one the image asks for.
        uid, gid = numbers(user, image.root) if user is not None else (0, 0)
        plan = {
            "uid": uid,
            "gid": gid,
            "lower": str(image.root),
            "binds": image.binds,
            "workdir": workdir,
            "disk_bytes": start.limits.disk_bytes,
            "inodes": start.limits.inodes,
        }

        async def make(directory: Path) -> H:
            keeper = await self._sandboxes.link.keeper(directory, workdir=workdir, root=plan, lease_s=lease_s)
            held = _Held(directory.name, keeper, start, image.env, workdir, user if os.geteuid() == 0 else None)
            try:
                return await self._handle(held)
            except BaseException:
                await finish(keeper.close())
                raise

        return await self._sandboxes.once(request_id, deadline_s, make)

    async def _handle(self, held: "_Held") -> H:
        raise NotImplementedError


class _Held(NamedTuple):
    """A root that is mounted, and what actions have in it."""

    id: str
    keeper: Keeper
    spec: Spec
    env: Mapping[str, str]
    workdir: str
    user: str | None


class ChrootSubstrate(_Chroot[HostHandle]):
    """Each action is a process that the keeper starts, timed by Python."""

    address = "chroot"

    async def _handle(self, held: _Held) -> HostHandle:
        return HostHandle(
            id=held.id,
            address=self.address,
            capabilities=_capabilities(),
            keeper=held.keeper,
            spec=held.spec,
            image_env=held.env,
            user=held.user,
            on_close=self._sandboxes.forget,
        )


class ChrootGuestSubstrate(_Chroot[KeptGuestHandle]):
    """Each action is a process that the guest starts and times, as it is in `namespace`: the floor for that."""

    address = "chroot+guest"

    async def _handle(self, held: _Held) -> KeptGuestHandle:
        link = await guest_below(held.keeper, program("excise-guest"))
        return KeptGuestHandle(
            held.keeper,
            link,
            id=held.id,
            address=self.address,
            capabilities=_capabilities(),
            spec=held.spec,
            image_env=held.env,
            cwd=held.workdir,
            user=held.user,
            on_close=self._sandboxes.forget,
        )


def _capabilities() -> Capabilities:
    return Capabilities(
        isolates=frozenset({"files"}),
        adopts=frozenset({"secrets"}),
        stream=True,
        sessions=True,
        pty=True,
        users=os.geteuid() == 0,
        background=True,
        signals=True,
        guest_clock=True,
        limits=frozenset({"disk_bytes", "inodes"}),
    )

"""One machine as a Handle: actions over its guest, states by saving and copying it whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from excise.action import Exec
from excise.adoption import same_making
from excise.errors import SandboxLost, SpecError
from excise.guest import wire
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.handles import environment, finish, make_ready
from excise.session_state import give_sessions, read_sessions
from excise.spec import Spec
from excise.storage.background import in_thread
from excise.substrate import Capabilities, SessionState, Snapshot, unsupported
from excise.substrates.microvm import machines
from excise.substrates.microvm.machines import Running
from excise.substrates.microvm.snapshots import Kept, Record, Snapshots
from excise.vmm.kept import remove
from excise.vmm.memory import erase

_FLUSH_BYTES = 6 << 20
"""More than all buffers between us and the guest hold: a ring has 1024 of 4 KiB."""
_CLEAN = f"find /tmp /dev/shm -mindepth 1 -delete 2>/dev/null; head -c {_FLUSH_BYTES} /dev/zero"


_NONE = Capabilities(users=True)
_LEAST_SECRET_BYTES = 6


async def _nothing() -> None:
    """Whoever made it ends it."""


def without_steps(spec: Spec, *, boot: bool = True) -> Spec:
    """What is left to do where the steps' outcome is there already, and with `boot=False` what boot began, too."""
    left = msgspec.structs.replace(spec, steps=(), repo=None, deps=None, lock=None)
    return left if boot else msgspec.structs.replace(left, boot=())


class MicrovmHandle(GuestHandle):
    """A sandbox that is a machine."""

    def __init__(
        self, running: Running, snapshots: Snapshots, start: Kept | None, image: str, lease_s: float, **more: Any
    ) -> None:
        """`start`: the snapshot it was copied from; its guest is greeted unless processes came along."""
        self.running = running
        self._snapshots = snapshots
        self._start = start
        self._image = image
        self._lease_s = lease_s
        self._known = dict(more["spec"].secrets)
        """Every secret it was ever given."""
        super().__init__(running.link, **more)

    def greet(self, link: Link, *, root: bool = False) -> None:
        start = self._start
        is_new = getattr(self, "link", None) is not link
        # Whose variables are others than those of the life that was saved, secrets say, begins one with its own.
        self._carried = (
            is_new
            and start is not None
            and start.snapshot.carries == "processes"
            and environment(self._image_env, start.snapshot.spec) == self.base
        )
        if self._carried and start is not None:
            self.carry_on(link, start.record.names)
        else:
            super().greet(link, root=root)

    async def _make_ready(self) -> None:
        if self._adopted:
            await super()._make_ready()
            return
        first = Exec(("true",), timeout_s=60)
        if self._start is None:
            await make_ready(self, self._spec, first)
        elif self._carried:
            await make_ready(self, without_steps(self._spec, boot=False), first)
        else:
            await make_ready(self, without_steps(self._spec), first)
            await give_sessions(self, self._start.snapshot.sessions)

    def _require_fit(self, spec: Spec) -> None:
        if spec.secrets and not self.running.plan.wipes:
            raise SpecError("this machine was not made for secrets: say needs={'adopts'} in the spec it is made of")

    async def _take_on(self, spec: Spec) -> None:
        # By value: one that changed under its name is still in memory.
        self._known |= {f"{name} {len(self._known)}": secret for name, secret in spec.secrets.items()}
        await super()._take_on(spec)

    # ---- states

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        """The whole machine; of one that knows secrets its files only, since memory would hold them."""
        self.link.check()
        if self._capabilities.snapshot is None:
            raise unsupported(self._address, "snapshot")
        if self.link.paused:
            raise SpecError("a paused sandbox cannot be saved: resume it first")
        if any(len(secret.reveal().encode()) < _LEAST_SECRET_BYTES for secret in self._known.values()):
            raise SpecError(f"no memory can be kept free of a secret of fewer than {_LEAST_SECRET_BYTES} bytes: make it longer")
        made, making = self._snapshots.begin()
        sessions: tuple[SessionState, ...] = ()
        try:
            if self._known:
                sessions = await read_sessions(self, self.sessions, self.base, self._spec)
                size_bytes = await self._save_files(making)
            else:
                size_bytes = await machines.save(self.running, making)
            record = self._record(made, sessions, size_bytes)
            return self._snapshots.keep(record, making, self._spec, self._lease_s, keep_s)
        finally:
            remove(making)

    def _record(self, made: str, sessions: tuple[SessionState, ...], size_bytes: int) -> Record:
        return Record(
            id=made,
            image=self._image,
            plan=self.running.plan,
            env=self._image_env,
            workdir=self._cwd or "/",
            user=self._user,
            carries="files" if self._known else "processes",
            names=() if self._known else tuple(sorted(self.sessions)),
            parent=None if self._start is None else self._start.snapshot.id,
            sessions=sessions,
            size_bytes=size_bytes,
        )

    async def _save_files(self, making: Path) -> int:
        """By way of a copy, in which everything ends that could know a secret, before that is saved."""
        whole = making.with_name(f"{making.name}-whole")
        try:
            await machines.save(self.running, whole)
            copied = await machines.copy(self.running.plan, whole)
        finally:
            remove(whole)
        try:
            await _forget_life(copied, self._image_env)
            size_bytes = await machines.save(copied, making)
        finally:
            await finish(copied.close())
        # The kernel may still hold a page that nobody will read again; a file of the sandbox's own loses it, too.
        values = [value.encode() for secret in self._known.values() if (value := secret.reveal())]
        await in_thread(lambda _: erase(making / machines.MEMORY, values))
        return size_bytes

    async def reset(self, snapshot: Snapshot) -> None:
        """Another machine, and another link to it, under the same handle. Given up half-way, the sandbox is lost."""
        async with self._readying:
            self.link.check()
            kept = self._snapshots.find(snapshot)
            if not same_making(kept.snapshot.spec, self._spec) and kept.snapshot.spec.image != self._spec.image:
                raise SpecError("a sandbox goes back to states of its own spec: make another one of this snapshot")
            running = await machines.copy(kept.record.plan, kept.directory)
            before, self.running, self._start = self.running, running, kept
            try:
                before.link.close()
                self.greet(running.link)
                await finish(before.close())
                self._adopted = False
                await self._make_ready()
            except BaseException as error:
                self.link.fail(f"its reset was given up half-way ({type(error).__name__}); make another one")
                raise

    # ---- life

    async def pause(self) -> None:
        self.link.check()
        await self.running.machine.pause()
        self.link.paused = True

    async def resume(self) -> None:
        self.link.check()
        await self.running.machine.resume()
        self.link.paused = False
        await machines.set_clock(self.link)

    async def renew(self, lease_s: float) -> None:
        self.link.check()
        self._lease_s = lease_s


async def _forget_life(copied: Running, image_env: Mapping[str, str]) -> None:
    """End every process of the copy, and overwrite what its guest still holds of what it was told."""
    link = copied.link
    link.greet(environment(image_env, Spec()), "/", None)
    await copied.machine.until(link.greeted(), "the copy of a machine does not answer")
    handle = GuestHandle(
        link,
        id="copy",
        address="microvm",
        capabilities=_NONE,
        spec=Spec(),
        image_env=image_env,
        cwd="/",
        user=None,
        dispose=_nothing,
    )
    cleaned = await handle.run(Exec(("/bin/sh", "-c", _CLEAN), cwd="/", user="0", timeout_s=60))
    if not cleaned.ok:
        raise SandboxLost(f"what is in /tmp of a snapshot could not be emptied: {cleaned.text.strip()[-200:]}")
    # Frames of no life that ever was: they are received and dropped, and lie where a greeting lay.
    junk = wire.frame(wire.DATA, 1, 0, bytes(wire.MAX_PAYLOAD))
    for _ in range(_FLUSH_BYTES // len(junk)):
        link.send(junk)
    await link.answer()

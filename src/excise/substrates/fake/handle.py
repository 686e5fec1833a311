"""One pretend sandbox, as the seam shows it."""

import asyncio
import errno
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from excise.action import Action, Batch, Command, End, Exec, FileAction, Observation, Shell
from excise.adoption import require_adoption
from excise.errors import CreateError, SandboxLost
from excise.handles import combine, failed_file, make_ready, observe, prepare, start_up
from excise.spec import Spec
from excise.substrate import Change, Connection, SessionState, Snapshot
from excise.substrates.fake.connection import FakeConnection
from excise.substrates.fake.diff import difference, without_unkept
from excise.substrates.fake.files import Tree
from excise.substrates.fake.life import Life
from excise.substrates.fake.machine import Machine
from excise.substrates.fake.process import FakeProcess

if TYPE_CHECKING:
    from excise.substrates.fake.substrate import FakeSubstrate

FEW = 8
"""How many actions at once `fake:broken=many-at-once` allows."""
CLOSED = "the sandbox was closed"


class FakeHandle:
    """A sandbox: its lives, one after another, and its lease."""

    def __init__(
        self,
        substrate: "FakeSubstrate",
        id: str,
        life: Life,
        labels: Mapping[str, str],
        parent: str | None,
    ) -> None:
        self.labels = dict(labels)
        self.born_s = asyncio.get_running_loop().time()
        self.lease_ends_s = self.born_s
        self._substrate = substrate
        self._id = id
        self._life = life
        self._parent = parent
        """The snapshot this state came from: its steps were done then."""
        self._prepared = parent is not None
        self._is_ready = self._adopted = False
        self._began_as = life.machine.tree
        """As the files were when it was ready or last reset."""
        self._getting_ready = asyncio.Lock()
        self._closed = self._closing = False
        self._wedged = False
        few = 1 if "concurrent-actions" in self._broken else FEW if "many-at-once" in self._broken else 1 << 30
        self._places = asyncio.Semaphore(few)

    @property
    def id(self) -> str:
        return self._id

    @property
    def spec(self) -> Spec:
        return self._life.spec

    @property
    def machine(self) -> Machine:
        return self._life.machine

    @property
    def _broken(self) -> frozenset[str]:
        return self._substrate.broken

    # ---- start state

    async def ready(self) -> None:
        self._live()
        async with self._getting_ready:
            if self._is_ready:
                return
            await self._substrate.chance.take(self._substrate.ready_s)
            await self._make_ready(self._scripted())
            self._began_as = self.machine.tree.copy()
            self._is_ready = True

    async def _make_ready(self, spec: Spec) -> None:
        if self._prepared and not self._adopted:
            await start_up(self, spec)
            return
        self.machine.network = spec.build_network or spec.network or "none"
        try:
            if self._adopted:
                await prepare(self, spec, built=self._built)
            else:
                await make_ready(self, spec, built=self._built)
        except CreateError:
            if "failed-step-is-create-error" not in self._broken:
                raise

    async def _built(self) -> None:
        """The steps are done, and have had their network."""
        if "build-network" not in self._broken and not (self._adopted and "adopted-network-holds" in self._broken):
            self.machine.network = self.spec.network or "none"

    def _scripted(self) -> Spec:
        """The spec whose steps, boot and ready commands are run: the sandbox's own, unless that is what is broken."""
        spec = self.spec
        if "steps-run-in-order" in self._broken:
            spec = msgspec.structs.replace(spec, steps=spec.steps[::-1])
        if "boot-runs-and-ready-passes" in self._broken:
            spec = msgspec.structs.replace(spec, boot=())
        if "ready-keeps-its-deadline" in self._broken:
            spec = msgspec.structs.replace(spec, ready=())
        if self._adopted and "adopted-steps-run-once" in self._broken:
            spec = msgspec.structs.replace(spec, steps=spec.steps * 2)
        if self._adopted and "adopted-boot-and-ready" in self._broken:
            spec = msgspec.structs.replace(spec, boot=())
        return spec

    # ---- another spec's

    async def alive(self) -> None:
        if "alive-tells-the-dead" in self._broken:
            return
        life = await self._dispatch()
        while life.machine.paused and life.machine.gone is None:
            await life.machine.changed.wait()  # one that stands still does not answer
        self._live()

    async def adopt(self, spec: Spec) -> None:
        life = await self._dispatch()
        if "adopt-refuses-what-differs" not in self._broken:
            require_adoption(self.spec, spec, self._substrate.capabilities, self._substrate.address)
        async with self._getting_ready:
            if spec.secrets or self.spec.secrets:  # processes have their variables from their beginning: these end
                life.end("the sandbox was given other secrets while the action ran")
                await life.machine.unwound()
                life = self._life = self._substrate.life(life.machine.tree, life.spec)
            life.take_on(spec)
            self._adopted, self._is_ready = self._adopted or self._is_ready, False

    # ---- actions

    async def run(self, action: Action) -> Observation:
        if "closed-handle-is-lost" in self._broken and self._closed:
            return Observation(exit_code=-1)
        async with self._places:
            match action:
                case Batch():
                    return await self._run_batch(action)
                case Exec() | Shell():
                    return await self._run_command(action)
                case _:
                    return await self._run_file(action)

    async def _run_command(self, action: Command) -> Observation:
        process = await self._start(action)
        if "stdin-empty-is-eof" not in self._broken:
            await process.close_stdin()
        try:
            seen = await observe(process, process.keep)
        except asyncio.CancelledError:
            self._wedged = "cancel-leaves-it-usable" in self._broken
            if ("session-survives-cancel" if process.in_session else "cancel-kills") not in self._broken:
                process.end()
            raise
        return self._judged(seen, process)

    def _judged(self, seen: Observation, process: FakeProcess) -> Observation:
        """The Observation; a broken machine takes the policy's doing for its own failure, or throws output away."""
        if "program-not-found" in self._broken and seen.exit_code == 127:
            raise SandboxLost("the program could not be started")
        if "stdin-unread-is-fine" in self._broken and process.unread_bytes:
            raise SandboxLost("writing to the program's stdin failed")
        if "timeout-keeps-output" in self._broken and seen.end is End.TIMED_OUT:
            return msgspec.structs.replace(seen, stdout=b"", stderr=b"")
        return seen

    async def _run_file(self, action: FileAction) -> Observation:
        life = await self._dispatch()
        begun_ns = life.machine.now_ns()
        await asyncio.sleep(life.guest_s)
        try:
            seen = life.files().do(action)
        except OSError as error:
            told = "file-errors" not in self._broken or error.errno == errno.ENOENT
            seen = failed_file(error.errno or errno.EIO) if told else failed_file(errno.EIO)
        if life.machine.gone is not None:
            raise SandboxLost(life.machine.gone)
        return msgspec.structs.replace(seen, guest_ns=life.machine.now_ns() - begun_ns)

    async def _run_batch(self, batch: Batch) -> Observation:
        parts: list[Observation] = []
        in_order = "batch-in-order" not in self._broken
        for action in batch.actions if in_order else batch.actions[::-1]:
            parts.append(await (self._run_command(action) if isinstance(action, Exec | Shell) else self._run_file(action)))
            stops = batch.stop_on_failure or "batch-goes-on" in self._broken
            if stops and not parts[-1].ok and "batch-stops-at-failure" not in self._broken:
                break
        return combine(parts)

    async def start(self, action: Command) -> FakeProcess:
        return await self._start(action)

    async def _start(self, action: Command) -> FakeProcess:
        return await (await self._dispatch()).start(action)

    async def _dispatch(self) -> Life:
        """The way in: it takes its time, and now and then the machinery dies on it."""
        life = self._live()
        await self._substrate.chance.take(self._substrate.action_s)
        if self._is_ready and self._substrate.chance.happens(self._substrate.lose):
            life.end("the pretend machine died, as lose= asked")
        if life.machine.gone is not None:  # also where a reset has put another in its place
            raise SandboxLost(life.machine.gone)
        return life

    def _live(self) -> Life:
        if self._life.machine.gone is not None:
            raise SandboxLost(self._life.machine.gone)
        if self._wedged:
            raise SandboxLost("an action that was cancelled left the wire unusable")
        return self._life

    # ---- files and ports

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        await (await self._dispatch()).files().upload(path, tar)

    async def download(self, path: str) -> AsyncIterator[bytes]:
        life = await self._dispatch()
        if "download-missing-is-told" in self._broken and not life.files().has(path):
            return
        async for piece in life.files().download(path):
            yield piece

    async def connect(self, port: int) -> Connection:
        life = await self._dispatch()
        listening = life.machine.ports.get(port)
        if listening is None or "connect-reaches-a-port" in self._broken:
            raise ConnectionRefusedError(f"nothing listens on port {port} inside")
        return FakeConnection(*listening.call())

    # ---- states

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        await self._dispatch()
        return self._substrate.keep(self, self._parent, keep_s)

    async def reset(self, snapshot: Snapshot) -> None:
        old = await self._dispatch()
        tree = self._substrate.kept(snapshot)
        if "reset-restores-files" in self._broken:
            tree = old.machine.tree
        self._parent = snapshot.id
        if self._broken & {"reset-kills-processes", "reset-forgets-sessions"}:
            old.go_on(tree)
        else:
            await self._begin_again(old, tree, snapshot.sessions)
        if "reset-runs-boot" not in self._broken:
            await start_up(self, self._scripted())
        self._began_as = self.machine.tree.copy()

    async def _begin_again(self, old: Life, tree: Tree, sessions: tuple[SessionState, ...]) -> None:
        if "no-answer-across-reset" in self._broken:
            old.machine.kill_all()
        else:
            old.end("the sandbox was reset while the action ran")
        await old.machine.unwound()
        self._life = self._substrate.life(tree, self.spec, sessions)
        if self._parent is not None:
            self._substrate.carry(self._parent, self._life)
        if self._adopted and "reset-keeps-adopted-terms" in self._broken:
            self._life.take_on(msgspec.structs.replace(self.spec, secrets={}))

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        life = await self._dispatch()
        before = self._began_as
        if since is not None and "diff-since-snapshot" not in self._broken:
            before = self._substrate.kept(since)
        found = difference(before, life.machine.tree, contents=contents and "diff-as-patch" not in self._broken)
        if "diff-tells-changes" in self._broken:
            return tuple(Change(path=one.path, kind="added" if one.kind == "modified" else one.kind) for one in found)
        return found

    def saved(self) -> tuple[Tree, tuple[SessionState, ...]]:
        """What a snapshot of this moment holds."""
        tree = self.machine.tree
        whole = self._substrate.carries == "processes" or "snapshot-keeps-no-tmp" in self._broken
        return tree.copy() if whole else without_unkept(tree), self._life.session_states()

    async def pause(self) -> None:
        life = await self._dispatch()
        if "pause-stops-it" not in self._broken:
            life.machine.pause()

    async def resume(self) -> None:
        (await self._dispatch()).machine.resume()

    # ---- lease and end

    async def renew(self, lease_s: float) -> None:
        self._live()
        if "renew-lease" not in self._broken or self.lease_ends_s == self.born_s:
            self.lease_ends_s = asyncio.get_running_loop().time() + lease_s

    async def close(self) -> None:
        if self._closing and "close-twice" in self._broken:
            raise SandboxLost("the sandbox is being closed already")
        self._closed = self._closing = True
        if "lost-is-not-a-result" in self._broken:
            self._life.machine.kill_all()
            await asyncio.sleep(1)  # time enough for the answer to get out
        self._life.end(CLOSED)
        self._substrate.forget(self)
        await self._life.machine.unwound()
        await self._substrate.chance.take(self._substrate.close_s)
        self._closing = False

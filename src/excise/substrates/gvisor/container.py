"""One running container: its keeper, its bundle, and the runsc commands that concern it.

Everything runs below the keeper, in a mount namespace of its own: closing the keeper ends runsc, its kernel and its file
server at once, and no mount, socket or file of theirs is left, however they ended.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from excise.action import Command, Exec
from excise.errors import CreateError, SandboxLost
from excise.handles import LONGEST_REASON, finish
from excise.host import packets
from excise.host.handle import HostHandle
from excise.host.link import Keeper
from excise.host.link import Link as Keepers
from excise.host.process import Answers, HostProcess
from excise.network.client import Proxies
from excise.spec import Spec
from excise.storage.background import in_thread
from excise.storage.pins import Pin
from excise.substrate import Capabilities, Change
from excise.substrates.gvisor import bundle, changes, groups, way_out
from excise.substrates.gvisor.bundle import ID, Start
from excise.substrates.gvisor.program import Runsc
from excise.substrates.gvisor.way_out import WayOut

_VERB_S = 60.0


class Container:
    """Made by `run` or `run_guest`; gone after `close`."""

    def __init__(self, runsc: Runsc, directory: Path, start: Start, keeper: Keeper, pin: Pin) -> None:
        self.start = start
        self._runsc = runsc
        self._directory = directory
        self._keeper = keeper
        self._pin = pin
        self._answers: Answers | None = None
        self._network: Path | None = None
        self._way: WayOut | None = None
        self.on_lost: Callable[[str], None] = _nobody
        """Told when it is of no use any more, although it runs."""
        self.lost: str | None = None
        """Why that is."""
        # Held open: the snapshot may be discarded, and what it was is still what this sandbox began with.
        self._base = None if start.upper is None else os.open(start.upper, os.O_RDONLY | os.O_CLOEXEC)
        self._group = groups.name(directory.name) if start.spec.limits.cpus is not None else None
        self._host = HostHandle(
            id=directory.name,
            address="gvisor",
            keeper=keeper,
            spec=Spec(),
            capabilities=Capabilities(stream=True),
            image_env={},
            user=None,
            on_close=lambda _: None,
        )

    @classmethod
    async def prepare(
        cls, keepers: Keepers, runsc: Runsc, directory: Path, start: Start, *, lease_s: float, pin: Pin
    ) -> "Container":
        """Its bundle, and the image where it can be mounted upon; nothing runs yet. The pin is ours from now on."""
        keeper: Keeper | None = None
        made: Container | None = None
        try:
            networked = not start.network.closed
            plan = {"layer": str(start.image.root), "directories": [[start.workdir, 0o777]], "network": networked}
            keeper = await keepers.keeper(directory, workdir=str(directory), root=plan, lease_s=lease_s)
            made = cls(runsc, directory, start, keeper, pin)
            for name in ("bundle", "state"):
                (directory / name).mkdir(mode=0o700)
            if networked:
                await made.lay_wire()
            config = bundle.config(start, f"{directory}/layer/root", made._group, made._network)
            (directory / "bundle" / "config.json").write_bytes(msgspec.json.encode(config))
        except BaseException:
            if made is not None:
                made._let_base_go()
            if keeper is not None:
                await finish(keeper.close())
            pin.close()
            raise
        return made

    # ---- its beginning

    async def lay_wire(self) -> None:
        """From the sandbox's network, by a file that holds it, to the keeper's."""
        self._network = self._directory / "network"
        argv = ("sh", "-c", way_out.SCRIPT, "sh", str(self._network))
        seen = await self._host.run(Exec(argv, env=_environment(), timeout_s=_VERB_S, merge=True))
        if not seen.ok:
            raise CreateError(
                f"the sandbox's network could not be made: {seen.text.strip()[-LONGEST_REASON:]}; {way_out.NEEDS}"
            )

    async def open_way(self, proxies: Proxies) -> None:
        """As its spec's steps have it, until `built`."""
        if self._network is None:
            return
        self._way = WayOut(proxies, self._lose)
        await self._way.begin(await way_out.listen(self._keeper), self.start.network.build)

    async def built(self) -> None:
        """The steps are done: its network is that of actions."""
        if self._way is not None and self.start.network.build != self.start.network.run:
            await self._way.change(self.start.network.run)

    def _run(self, *options: str) -> tuple[str, ...]:
        flags = bundle.flags(self.start, self._runsc, grouped=self._group is not None)
        words = (*flags, "run", f"--bundle={self._directory}/bundle", *options, ID)
        network = "none" if self._network is None else "sandbox"
        return self._runsc.argv(self._state, *words, log=self._log, network=network)

    async def run(self) -> None:
        """Start it, with nothing but PID 1 in it; it runs on when this returns."""
        seen = await self._host.run(Exec(self._run("--detach"), env=_environment(), timeout_s=_VERB_S, merge=True))
        if not seen.ok:
            raise CreateError(f"runsc did not start the sandbox: {self.last_words(seen.text)}")

    async def run_guest(self, link: socket.socket) -> None:
        """Start it with the guest as PID 1 and `link`, the guest's end, as its stdin and stdout."""
        heard, told = packets.pair()
        request = {"op": "exec", "argv": self._run(), "env": _environment(), "cwd": None, "user": None, "pty": False}
        with told:
            self._answers = Answers(heard)
            body = packets.body(request)
            console = os.open(self._console, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                await self._keeper.send([body, told.fileno(), link.fileno(), link.fileno(), console])
            finally:
                os.close(body)
                os.close(console)

    # ---- what is done with it

    async def verb(self, name: str, *options: str) -> None:
        """One of runsc's verbs. SandboxLost if it fails: nothing that lives refuses these."""
        argv = self._runsc.argv(self._state, *name.split(), *options, ID, log=self._log)
        seen = await self._host.run(Exec(argv, env=_environment(), timeout_s=_VERB_S, merge=True))
        if not seen.ok:
            raise SandboxLost(f"`runsc {name}` failed: {self.last_words(seen.text)}")

    async def mark(self) -> None:
        """From now on `changes` are those after this moment."""
        path = self._directory / "start.tar"
        await self.tar(path)
        self._let_base_go()
        self._base = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    async def tar(self, path: Path) -> None:
        """What was written over the image, into the file `path`."""
        await self.verb("tar rootfs-upper", f"--file={path}")

    async def changes(self, since: Path | None, *, contents: bool) -> tuple[Change, ...]:
        """What was changed since the layer `since`, or since the start."""
        before = since if since is not None or self._base is None else Path(f"/proc/self/fd/{self._base}")
        given = changes.above(self.start.workdir).union(*(changes.above(mount.target) for mount in self.start.spec.mounts))
        path = self._directory / f"diff-{os.urandom(8).hex()}.tar"
        try:
            await self.tar(path)
            return await in_thread(lambda _: changes.compared(self.start.image.root, before, path, given, contents=contents))
        finally:
            path.unlink(missing_ok=True)

    def _let_base_go(self) -> None:
        base, self._base = self._base, None
        if base is not None:
            os.close(base)

    async def begin(self, process: dict[str, Any], action: Command) -> HostProcess:
        """`runsc exec` of a program of the sandbox, on pipes of this machine."""
        # By a file, which only we can read: whoever is on this machine can read a command line, and the variables hold secrets.
        path = self._directory / f"exec-{os.urandom(8).hex()}.json"
        try:
            path.write_bytes(msgspec.json.encode(process))
        except FileNotFoundError:
            raise SandboxLost("the sandbox's directory is gone: its lease ran out, or its keeper was killed") from None
        argv = self._runsc.argv(self._state, "exec", f"--process={path}", ID)
        outer = Exec(argv, env=_environment(), merge=action.merge, keep=action.keep)
        try:
            began = await self._host.begin(outer, interactive=True)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        assert isinstance(began, HostProcess)
        release = began.on_release

        def released(ended: HostProcess) -> None:
            path.unlink(missing_ok=True)
            release(ended)

        began.on_release = released
        return began

    async def answers(self) -> None:
        """SandboxLost unless the process that keeps it does."""
        await self._host.alive()

    async def renew(self, lease_s: float) -> None:
        await self._host.renew(lease_s)

    def _lose(self, reason: str) -> None:
        self.lost = reason
        self.on_lost(reason)

    async def close(self) -> None:
        """Nothing of it is left on return. Twice is fine."""
        if self._way is not None:
            await self._way.close()
        await self._host.close()
        if self._answers is not None:
            self._answers.close()
        if self._group is not None:
            await asyncio.to_thread(groups.remove, self._group)
        self._let_base_go()
        self._pin.close()

    # ---- why it ended

    @property
    def _state(self) -> Path:
        return self._directory / "state"

    @property
    def _console(self) -> Path:
        return self._directory / "console"

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def last_words(self, said: str = "") -> str:
        """The end of what runsc and its kernel said; for an error of ours."""
        found = [said, *(_tail(path) for path in (self._console, self._log))]
        words = " ".join(" ".join(found).split())
        return words[-LONGEST_REASON:] or "it said nothing"


def _nobody(_: str) -> None:
    """Told to nobody."""


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LONGEST_REASON))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _environment() -> dict[str, str]:
    """What runsc needs of its caller's variables, and no more."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}

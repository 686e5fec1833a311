"""The containers behind one sandbox, one after another: what a reset leaves is removed beside whatever goes on."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from excise.action import Exec
from excise.errors import Unsupported
from excise.handles import finish
from excise.spec import Spec
from excise.storage.background import to_end
from excise.substrate import SessionState, Snapshot
from excise.substrates.docker import container
from excise.substrates.docker.snapshots import Snapshots, reference

LEASE_S = 3600.0
"""Of a snapshot, if nothing is known of its sandbox's."""
_TMP = "/tmp"  # noqa: S108 - the sandbox's own
# What is mounted in /tmp stays: it is somebody else's. A link would lead elsewhere.
_EMPTY_TMP = """
workdir=$1; shift
if test -d /tmp && test ! -L /tmp && cd /tmp; then
  for name in .[!.]* ..?* *; do
    for kept; do test "$name" = "$kept" && continue 2; done
    rm -rf "./$name"
  done
fi
test -z "$workdir" || mkdir -p "$workdir"
"""


def without_steps(spec: Spec) -> Spec:
    """What is left to do with a sandbox that begins with a snapshot: the steps are in its files."""
    return spec.with_steps(())


class Lives:
    """Which container is behind the sandbox now, and what it began with."""

    def __init__(
        self,
        snapshots: Snapshots,
        container_id: str,
        *,
        sandbox: str,
        spec: Spec,
        start: Snapshot | None,
        lease_s: float,
    ) -> None:
        self.container = container_id
        self.start = start
        self.snapshots = snapshots
        self.lease_s = lease_s
        self._engine = snapshots.engine
        self._sandbox = sandbox
        self._spec = spec
        self._stepped = start is None and bool(spec.all_steps())
        """Whether steps have written into the container: the daemon does not tell what they did from what came after."""
        self._next: str | None = None
        self._removing: list[asyncio.Task[None]] = []

    def first(self) -> Exec | None:
        """The first command of a life that begins with a snapshot: it leaves /tmp empty, as every substrate's is then."""
        if self.start is None:
            return None
        spec = self._spec
        targets = [mount.target.rstrip("/") or "/" for mount in spec.mounts]
        if _TMP in targets:
            return Exec(("true",), timeout_s=60)
        kept = {target.split("/")[2] for target in targets if target.startswith(f"{_TMP}/")}
        workdir = spec.workdir if spec.workdir and spec.workdir.startswith(f"{_TMP}/") else ""
        return Exec(("sh", "-c", _EMPTY_TMP, "sh", workdir, *sorted(kept)), cwd="/", user="0", timeout_s=60)

    def left_to_do(self) -> Spec:
        return self._spec if self.start is None else without_steps(self._spec)

    async def adopt(self, spec: Spec) -> None:
        """Its limits, in a container that goes on; those after it have them from this one."""
        before = self._spec.limits
        if before != spec.limits:
            lifted = before.cpus is not None and spec.limits.cpus is None
            cpus = int((await self._engine.info())["NCPU"]) if lifted else 0
            await self._engine.update(self.container, container.changed(before, spec.limits, cpus))
        self._spec = spec
        self._stepped = self._stepped or bool(spec.all_steps())

    async def renew(self, lease_s: float) -> None:
        await self._engine.renew(self.container, lease_s)
        self.lease_s = lease_s

    async def snapshot(
        self, user: str | None, sessions: tuple[SessionState, ...] = (), *, keep_s: float | None = None
    ) -> Snapshot:
        parent = self.start.id if self.start is not None else None
        lease_s = self.lease_s if keep_s is None else keep_s
        return await self.snapshots.take(
            self.container, spec=self._spec, user=user, parent=parent, lease_s=lease_s, sessions=sessions
        )

    # ---- reset

    async def prepare(self, snapshot: Snapshot) -> str:
        """The next container, not started yet. Whatever keeps it from being made, the sandbox lives on as it is."""
        await self._drop_prepared()
        with self._engine.losses():
            shown = await self._engine.show(self.container)
        name, config = container.again(shown, reference(snapshot), self._sandbox)
        self._next = await self.snapshots.create(name, config)
        return self._next

    async def turn(self, snapshot: Snapshot) -> None:
        """End what is there and start what was prepared, at the same time; carried to its end even when cancelled."""
        assert self._next is not None
        old, self.container = self.container, self._next
        begun, self.start, self._next = self.start, snapshot, None
        self._stepped = False
        try:
            await to_end(_all_of(self._engine.kill(old), self._engine.begin(self.container)))
        finally:
            self._removing = [task for task in self._removing if not task.done() or task.exception() is not None]
            self._removing.append(self.snapshots.remove_later(old, begun))

    # ---- the end

    async def remove(self) -> None:
        """Nothing of any life is left on return."""
        await self._drop_prepared()
        await self.snapshots.remove(self.container, self.start)
        for task in self._removing:
            await task

    async def _drop_prepared(self) -> None:
        """A reset that was given up in time has left one."""
        if self._next is not None:
            await finish(self._engine.remove(self._next))
            self._next = None

    def refuse(self, since: Snapshot | None, address: str) -> None:
        """The daemon compares a container with the image it was made of, and with nothing else."""
        if since is not None and (self.start is None or since.id != self.start.id):
            raise Unsupported(
                f"{address} compares with a sandbox's own start only: reset to the snapshot, or fork, and work from there"
            )
        if since is None and self._stepped:
            raise Unsupported(
                f"{address} cannot tell what the spec's steps changed from what came after: fork the sandbox, work in the fork"
            )


async def _all_of(*work: Coroutine[Any, Any, None]) -> None:
    """All at the same time, each to its end; then the first failure, if there is one."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome

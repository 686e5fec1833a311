"""The seam: what an implementer writes. What a user holds is `Sandbox`.

Everything that can hand out a sandbox is a Substrate: a container engine, a cluster, a pool over another substrate.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Literal, Protocol

import msgspec

from excise.action import Action, Command, Event, Observation, Shell
from excise.errors import SpecError, Unsupported
from excise.spec import Allow, Kernel, Spec

Term = Literal["memory_bytes", "cpus", "pids", "disk_bytes", "inodes", "network", "secrets"]
"""What a rollout brings along to a state: a field of its spec, or of its limits."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a substrate can do, as data, before anything is created. What is not declared raises Unsupported."""

    kernel: Kernel = "shared"
    isolates: frozenset[Literal["files", "processes", "network", "ipc", "users"]] = frozenset()
    """What of one sandbox others (and the host) cannot see or touch."""
    snapshot: Literal["files", "processes"] | None = None
    diff: frozenset[Literal["start", "snapshot"]] = frozenset()
    """What `diff` compares with: the sandbox's own start, any snapshot that was taken of it."""
    keeps_steps: bool = False
    """What a spec's steps lead to is kept, and later sandboxes begin with it; a step that says `share=False` is run in each."""
    adopts: frozenset[Term] = frozenset()
    """Which of a spec's terms a living sandbox can take on: `adopt`; limits one by one, for a disk is harder to change.

    A spec whose `needs` name this is made into a sandbox that is prepared for it: else it may refuse to take on what it
    has nothing for, such as a limit where it has none."""
    stream: bool = False
    """`start`: output as it comes, stdin while it runs, signals."""
    unread_bytes: int = 16 << 20
    """At most so much of a process's output is held on its way while nobody reads it; then the process itself stops."""
    sessions: bool = False
    pty: bool = False
    attach: bool = False
    """`attach` and `list`: a sandbox outlives the client that made it."""
    users: bool = False
    pause: bool = False
    ports: bool = False
    """`connect(port)`."""
    mounts: bool = False
    devices: bool = False
    background: bool = False
    """A process an action leaves running lives on after it."""
    signals: bool = False
    """A death by signal is told from an exit code above 128."""
    guest_clock: bool = False
    """`guest_ns`: the action's own duration is measured inside, next to the process."""
    limits: frozenset[str] = frozenset()
    """Names of `Limits` fields that are enforced."""
    network: frozenset[Literal["none", "allow", "open"]] = frozenset()
    """Network modes that are enforced; without "none" a sandbox shares the host's network."""
    build_network: bool = False
    """The steps of a spec may have another network than its actions."""
    versions: Mapping[str, str] = {}

    def has(self, name: str) -> bool:
        """Whether the ability called `name` (a field of this record) is there."""
        known = sorted(set(self.__struct_fields__) - {"kernel", "versions", "unread_bytes"})
        if name not in known:
            raise SpecError(f"no ability is called {name!r}; there are: {', '.join(known)}")
        return bool(getattr(self, name))


_KERNEL_RANK: dict[Kernel, int] = {"shared": 0, "intercepted": 1, "own": 2}


def require(spec: Spec, capabilities: Capabilities, address: str) -> None:
    """Refuse, in one sentence, a spec this substrate cannot honour in full: nothing is ever ignored."""
    lacking = sorted(name for name in spec.needs if not capabilities.has(name))
    if lacking:
        raise SpecError(f"{address} lacks {', '.join(lacking)}, which the spec needs; `excise doctor` shows who has it")
    if spec.isolation and _KERNEL_RANK[spec.isolation] > _KERNEL_RANK[capabilities.kernel]:
        raise SpecError(f"{address} has a {capabilities.kernel} kernel; the spec wants it at least {spec.isolation}")
    unlimited = sorted(spec.limits.asked() - capabilities.limits)
    if unlimited:
        raise SpecError(f"{address} does not enforce limits on {', '.join(unlimited)}; drop them or choose another")
    spec.limits.check()
    _require_network(spec, capabilities, address)
    for field, asked in (("mounts", spec.mounts), ("devices", spec.devices)):
        if asked and not capabilities.has(field):
            raise SpecError(f"{address} does not build the spec's {field} yet; leave the field out")
    spec.all_steps()  # a repo= that names no commit is refused here, before anything is made
    if spec.boot and not capabilities.background:
        raise SpecError(f"{address} keeps nothing running after an action; leave the spec's boot commands out")
    if any(command.stdin or command.pty or (isinstance(command, Shell) and command.session) for command in spec.boot):
        raise SpecError("a boot command runs in the background: it takes cwd, env and user, but no stdin, pty or session")
    if spec.user is not None and not capabilities.users:
        raise SpecError(f"{address} runs everything as one user; leave user= out, or choose another substrate")


def _require_network(spec: Spec, capabilities: Capabilities, address: str) -> None:
    for field, asked in (("network", spec.network), ("build_network", spec.build_network)):
        mode = "allow" if isinstance(asked, Allow) else asked
        if mode == "none" and mode not in capabilities.network:
            raise SpecError(f"{address} cannot cut the network off; leave {field} unset to accept that, or choose another")
        if mode is not None and mode not in capabilities.network:
            raise SpecError(f"{address} does not build {field}={mode!r} yet; it has: {_words(capabilities.network)}")
    if spec.build_network not in (None, spec.network) and not capabilities.build_network:
        raise SpecError(f"{address} has one network for steps and actions; leave build_network out, or choose another")


def require_command(command: Command, capabilities: Capabilities, address: str) -> None:
    """Refuse a command that asks for an ability the substrate does not declare."""
    session = command.session if isinstance(command, Shell) else None
    for ability, word, asked in (
        ("users", "user=", command.user),
        ("pty", "pty=", command.pty),
        ("sessions", "session=", session),
    ):
        if asked is not None and not capabilities.has(ability):
            raise unsupported(address, word)


def unsupported(address: str, verb: str) -> Unsupported:
    return Unsupported(f"{address} does not have {verb}; its Capabilities say so")


def _words(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "none"


class SessionState(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot keeps of one session: the session of this name has it again in sandboxes of the snapshot."""

    name: str
    cwd: str
    env: Mapping[str, str] = {}
    """Exported variables, as far as they differ from what every action has; never one that holds a secret."""
    unset: tuple[str, ...] = ()
    """Variables that every action has and this session took away."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A saved state; it outlives its sandbox. `create(Snapshot)` makes fork a create.

    One that carries files holds them and, of every session, the directory and the exported variables. It never holds /tmp
    and /dev/shm, which are empty after every reset and fork, and no secret. One that carries processes holds all of the
    sandbox, memory included: /tmp, /dev/shm, sessions and what runs, which goes on in every copy; `boot` commands are not
    run again. Memory would hold secrets, so a sandbox that was ever given one is saved as files.
    """

    id: str
    address: str
    spec: Spec
    parent: str | None = None
    carries: Literal["files", "processes"] = "files"
    size_bytes: int = 0
    lease_s: float | None = None
    sessions: tuple[SessionState, ...] = ()


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One path that is not what it was.

    A directory is listed if it was added or deleted, never because of what changed in it. What was in a deleted one is
    listed too if contents were asked for, and not otherwise.
    """

    path: str
    """From the root, without a trailing slash."""
    kind: Literal["added", "modified", "deleted"]
    before: bytes | None = None
    """If contents were asked for: a file's bytes, or a link's target, as they were."""
    before_mode: int | None = None
    """The same way: `st_mode`, the type included."""


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox as `list` sees it."""

    id: str
    labels: Mapping[str, str] = {}
    age_s: float | None = None
    lease_left_s: float | None = None
    """Below zero: nobody renewed it, and gc may take it."""


class Process(Protocol):
    """A running action. `events` is flow-controlled: who does not read stalls this producer and nobody else."""

    @property
    def id(self) -> str: ...
    def events(self) -> AsyncIterator[Event]: ...
    async def write(self, data: bytes) -> None: ...
    async def close_stdin(self) -> None: ...
    async def resize(self, rows: int, columns: int) -> None: ...
    async def signal(self, number: int) -> None: ...
    async def wait(self) -> Observation:
        """Read events to the end, keeping what the action's `keep` says."""
        ...

    async def kill(self) -> None:
        """End every process the action started, however it detached; they are dead when this returns."""
        ...


class Handle(Protocol):
    """One sandbox, as an implementer sees it."""

    @property
    def id(self) -> str: ...
    async def ready(self) -> None:
        """Return once a first command has answered and the spec's steps, boot and ready commands are done."""
        ...

    async def alive(self) -> None:
        """Raise SandboxLost unless it answers now: the cheapest question that a dead or stuck one cannot answer."""
        ...

    async def adopt(self, spec: Spec) -> None:
        """From now on it is a sandbox of `spec`, whose state it has but for `spec.steps`: the next `ready` runs these.

        Each limit, network and secrets are taken on if Capabilities.adopts names them, and must be equal otherwise; image,
        env, workdir, user, mounts and devices must be equal in any case: SpecError. Its network is `build_network` until
        `ready` has run the steps. What ran in it before may be ended. Given up half-way, the sandbox is lost.
        """
        ...

    async def run(self, action: Action) -> Observation: ...
    async def start(self, action: Command) -> Process: ...
    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack a tar stream into the directory `path`."""
        ...

    def download(self, path: str) -> AsyncIterator[bytes]:
        """The file or directory `path` as a tar stream, its names relative to the parent of `path`."""
        ...

    async def connect(self, port: int) -> "Connection": ...
    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        """The state as it is. `keep_s`: saved before it is returned, and kept for so long, whoever lives or not."""
        ...

    async def reset(self, snapshot: Snapshot) -> None: ...
    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> "tuple[Change, ...]":
        """What was changed since `since`, or since the sandbox was ready or last reset; sorted by path.

        /tmp and what is mounted is left out. `contents`: with what files and links held before.
        """
        ...

    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def renew(self, lease_s: float) -> None: ...
    async def close(self) -> None:
        """Leave nothing behind. Twice is fine."""
        ...


class Connection(Protocol):
    """A byte stream to a port inside a sandbox."""

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        ...

    async def write(self, data: bytes) -> None: ...
    async def close(self) -> None: ...


class Substrate(Protocol):
    """Whatever hands out sandboxes."""

    @property
    def address(self) -> str: ...
    async def probe(self) -> Capabilities:
        """What this substrate can do here, found by trying; raises SubstrateError, naming the remedy, if it cannot run."""
        ...

    async def create(
        self,
        start: Spec | Snapshot,
        *,
        deadline_s: float,
        lease_s: float,
        labels: Mapping[str, str],
        request_id: str,
    ) -> Handle:
        """Make a sandbox. The same request_id twice gives the same sandbox, not two."""
        ...

    async def attach(self, id: str) -> Handle: ...
    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]: ...
    async def snapshots(self) -> tuple[Snapshot, ...]:
        """Those that sandboxes can be made of from here. One that another client took has a spec that names its image only."""
        ...

    async def discard(self, snapshot: Snapshot) -> None:
        """Give a snapshot's storage back; sandboxes made from it live on."""
        ...

    async def collect(self) -> tuple[str, ...]:
        """Remove what outlived its lease or its owner, and say what it was: `excise gc`."""
        ...

    async def close(self) -> None: ...

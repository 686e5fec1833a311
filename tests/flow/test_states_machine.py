"""Files changed, states saved, gone back to and forked in any order: every sandbox is what a model of a filesystem says.

The model is a dict. Where it says that an operation cannot be, the sandbox must refuse it, and be as before.
"""

import asyncio
import copy
import io
import posixpath
import shlex
import tarfile
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from excise.action import MakeDir
from excise.errors import SpecError
from excise.registry import make
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrate import Snapshot, Substrate
from excise.substrates.fake.virtual_time import VirtualLoop

ROOT = "/srv/model"
MOST_BOXES = 3
MOST_SNAPSHOTS = 4
SLEEPER = b"sleep\x00271828\x00"
PATHS = st.sampled_from(["a", "b", "a/c", "a/d", "b/c", "a/c/e"])
MODES = st.sampled_from([0o600, 0o644, 0o755])
SESSIONS = st.sampled_from(["main", "other"])


# ---- the model


class Node(NamedTuple):
    kind: str
    mode: int = 0
    content: bytes | str = b""
    """A file's bytes; a link's target."""


class Files(dict[str, Node]):
    """What is below ROOT, by path. An OSError says that the filesystem must refuse."""

    def through_link(self, path: str, *, final: bool) -> bool:
        """Whether a link is on the way: where that leads is the kernel's affair, and no layer's."""
        parts = path.split("/")
        names = ["/".join(parts[:n]) for n in range(1, len(parts) + (1 if final else 0))]
        return any(name in self and self[name].kind == "link" for name in names)

    def write(self, path: str, data: bytes, mode: int) -> None:
        if path in self and self[path].kind == "dir":
            raise IsADirectoryError
        self._make_parents(path)
        self[path] = Node("file", mode, data)

    def append(self, path: str, data: bytes) -> None:
        old = self[path] if path in self else None
        if old is None or old.kind == "dir":
            raise FileNotFoundError
        assert isinstance(old.content, bytes)
        self[path] = old._replace(content=old.content + data)

    def make_dir(self, path: str) -> None:
        if path in self and self[path].kind != "dir":
            raise FileExistsError
        self._make_parents(path)
        self.setdefault(path, Node("dir", 0o755))

    def link(self, path: str, target: str) -> None:
        self._need_parent(path)
        if path in self:
            raise FileExistsError
        self[path] = Node("link", 0, target)

    def chmod(self, path: str, mode: int) -> None:
        if path not in self:
            raise FileNotFoundError
        self[path] = self[path]._replace(mode=mode)

    def remove(self, path: str) -> None:
        if path not in self:
            raise FileNotFoundError
        for name in self._tree(path):
            del self[name]

    def move(self, path: str, target: str) -> None:
        if path not in self:
            raise FileNotFoundError
        self._need_parent(target)
        if target.startswith(f"{path}/"):
            raise OSError
        there = self.get(target)
        if there is not None and (there.kind == "dir") != (self[path].kind == "dir"):
            raise OSError
        if there is not None and target != path and len(self._tree(target)) > 1:
            raise OSError
        moved = {target + name.removeprefix(path): self.pop(name) for name in self._tree(path)}
        self.update(moved)

    def _tree(self, path: str) -> list[str]:
        return [name for name in self if name == path or name.startswith(f"{path}/")]

    def _need_parent(self, path: str) -> None:
        parent = posixpath.dirname(path)
        if parent and (parent not in self or self[parent].kind != "dir"):
            raise FileNotFoundError

    def _make_parents(self, path: str) -> None:
        parents = path.split("/")[:-1]
        names = ["/".join(parents[: n + 1]) for n in range(len(parents))]
        if any(name in self and self[name].kind != "dir" for name in names):
            raise NotADirectoryError
        for name in names:
            self.setdefault(name, Node("dir", 0o755))


class Shell:
    """What a session's shell has."""

    def __init__(self) -> None:
        self.cwd = "/"
        self.exported = ""
        self.plain = ""

    def carried(self) -> "Shell":
        """What a snapshot keeps of it."""
        kept = copy.copy(self)
        kept.plain = ""
        return kept


class State:
    """A sandbox's, or a snapshot's."""

    def __init__(self) -> None:
        self.files = Files()
        self.shells: dict[str, Shell] = {}
        self.scratch: set[str] = set()
        """Names in /tmp."""
        self.left_running = 0

    def saved(self) -> "State":
        """What a snapshot of it has, and all that are made of that."""
        kept = State()
        kept.files = copy.copy(self.files)
        kept.shells = {name: shell.carried() for name, shell in self.shells.items()}
        return kept


class Box(NamedTuple):
    sandbox: Sandbox
    state: State

    def take(self, state: State) -> None:
        vars(self.state).update(vars(state.saved()))


class Saved(NamedTuple):
    snapshot: Snapshot
    state: State


# ---- what it is compared with


class Ground:
    """One open substrate, for all examples of a run."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_pretended = address == "fake"
        self._runner = asyncio.Runner(loop_factory=VirtualLoop if self.is_pretended else None)
        self.substrate: Substrate = self.run(self._connect())

    async def _connect(self) -> Substrate:
        return make(self.address)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.substrate.close())
        self._runner.close()


async def files_of(box: Sandbox) -> Files:
    data = b"".join([piece async for piece in box.download(ROOT)])
    found = Files()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for entry in archive:
            name = entry.name.strip("/").partition("/")[2]
            if not name:
                continue
            if entry.isdir():
                found[name] = Node("dir", entry.mode)
            elif entry.issym():
                found[name] = Node("link", 0, entry.linkname)
            else:
                body = archive.extractfile(entry)
                assert body is not None
                found[name] = Node("file", entry.mode, body.read())
    return found


async def compare(ground: Ground, box: Sandbox, state: State) -> None:
    assert await files_of(box) == state.files
    assert {entry.name for entry in await box.list("/tmp")} == state.scratch
    if not ground.is_pretended:
        seen = await box.run("cat /proc/[0-9]*/cmdline 2>/dev/null")
        assert seen.stdout.count(SLEEPER) == state.left_running


async def compare_shells(box: Sandbox, state: State) -> None:
    for name in ("main", "other"):
        seen = await box.run('pwd; printf "[%s][%s]" "$EXPORTED" "$PLAIN"', session=name)
        if name in state.shells:
            shell = state.shells[name]
            assert seen.text == f"{shell.cwd}\n[{shell.exported}][{shell.plain}]"
        else:
            assert seen.text.endswith("\n[][]")
            state.shells[name] = Shell()
            state.shells[name].cwd = seen.text.partition("\n")[0]


# ---- any order


class AnyStates(RuleBasedStateMachine):
    """Rules on sandboxes of one substrate."""

    ground: Ground
    boxes = Bundle("boxes")
    snapshots = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self._open: list[Box] = []
        self._saved: list[Saved] = []

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.ground.run(work)

    def _both(self, box: Box, model: Callable[[Files], None], real: Callable[[Sandbox], Awaitable[Any]]) -> None:
        """The same in the model and inside: it is done in both, or refused by both."""

        async def act() -> None:
            await real(box.sandbox)

        changed = copy.copy(box.state.files)
        try:
            model(changed)
        except OSError:
            with pytest.raises(OSError):  # noqa: PT011 - which one is the contract's affair
                self._run(act())
            return
        self._run(act())
        box.state.files = changed

    async def _shell(self, box: Sandbox, text: str) -> None:
        seen = await box.run(f"cd {ROOT} && {text}")
        if not seen.ok:
            raise OSError(seen.text)

    # ---- sandboxes

    async def _opened(self, start: Snapshot | None) -> Sandbox:
        box = Sandbox(self.ground.substrate, start if start is not None else Spec(), ttl_s=600)
        await box.open()
        return box

    @precondition(lambda self: len(self._open) < MOST_BOXES)
    @rule(target=boxes)
    def create(self) -> Box:
        box = Box(self._run(self._opened(None)), State())
        self._open.append(box)
        self._run(box.sandbox.run(MakeDir(ROOT)))
        return box

    @precondition(lambda self: len(self._open) < MOST_BOXES)
    @rule(target=boxes, saved=snapshots)
    def create_from(self, saved: Saved) -> Box:
        box = Box(self._run(self._opened(saved.snapshot)), saved.state.saved())
        self._open.append(box)
        return box

    @rule(box=consumes(boxes))
    def close(self, box: Box) -> None:
        self._open.remove(box)
        self._run(box.sandbox.close())

    # ---- files

    @rule(box=boxes, path=PATHS, data=st.binary(max_size=6), mode=MODES)
    def write(self, box: Box, path: str, data: bytes, mode: int) -> None:
        if not box.state.files.through_link(path, final=True):
            at = f"{ROOT}/{path}"
            self._both(box, lambda files: files.write(path, data, mode), lambda inside: inside.write(at, data, mode=mode))

    @rule(box=boxes, path=PATHS)
    def add_to(self, box: Box, path: str) -> None:
        """As a program does, in place: what lies in a layer is copied up."""
        if not box.state.files.through_link(path, final=True):
            text = f"test -f {path} && echo more >> {path}"
            self._both(box, lambda files: files.append(path, b"more\n"), lambda inside: self._shell(inside, text))

    @rule(box=boxes, path=PATHS)
    def make_dir(self, box: Box, path: str) -> None:
        if not box.state.files.through_link(path, final=True):
            at = f"{ROOT}/{path}"
            self._both(box, lambda files: files.make_dir(path), lambda inside: inside.make_dir(at))

    @rule(box=boxes, path=PATHS, to=st.sampled_from(["a", "nowhere", "../up"]))
    def link(self, box: Box, path: str, to: str) -> None:
        files = box.state.files
        if not files.through_link(path, final=False) and (path not in files or files[path].kind != "dir"):
            text = f"ln -s {to} {path}"
            self._both(box, lambda files: files.link(path, to), lambda inside: self._shell(inside, text))

    @rule(box=boxes, path=PATHS, mode=MODES)
    def chmod(self, box: Box, path: str, mode: int) -> None:
        if not box.state.files.through_link(path, final=True):
            text = f"chmod {mode:o} {path}"
            self._both(box, lambda files: files.chmod(path, mode), lambda inside: self._shell(inside, text))

    @rule(box=boxes, path=PATHS)
    def remove(self, box: Box, path: str) -> None:
        if not box.state.files.through_link(path, final=False):
            at = f"{ROOT}/{path}"
            self._both(box, lambda files: files.remove(path), lambda inside: inside.remove(at, recursive=True))

    @rule(box=boxes, path=PATHS, to=PATHS)
    def move(self, box: Box, path: str, to: str) -> None:
        files = box.state.files
        if not files.through_link(path, final=False) and not files.through_link(to, final=False):
            old, new = f"{ROOT}/{path}", f"{ROOT}/{to}"
            self._both(box, lambda files: files.move(path, to), lambda inside: inside.move(old, new))

    # ---- what is no file of the state

    @rule(box=boxes, name=st.sampled_from(["x", "y"]))
    def write_in_tmp(self, box: Box, name: str) -> None:
        self._run(box.sandbox.write(f"/tmp/{name}", name))
        box.state.scratch.add(name)

    @rule(box=boxes)
    def leave_running(self, box: Box) -> None:
        seen = self._run(box.sandbox.run("sleep 271828 >/dev/null 2>&1 &"))
        assert seen.ok
        box.state.left_running += 1

    @rule(
        box=boxes,
        name=SESSIONS,
        cwd=st.sampled_from(["/", "/srv", ROOT]),
        exported=st.sampled_from(["", "it's two", 'a "b"\\']),
    )
    def use_session(self, box: Box, name: str, cwd: str, exported: str) -> None:
        text = f"cd {cwd} && export EXPORTED={shlex.quote(exported)} && PLAIN=p"
        assert self._run(box.sandbox.run(text, session=name)).ok
        shell = box.state.shells.setdefault(name, Shell())
        shell.cwd, shell.exported, shell.plain = cwd, exported, "p"

    @rule(box=boxes)
    def look_at_sessions(self, box: Box) -> None:
        self._run(compare_shells(box.sandbox, box.state))

    # ---- states

    @precondition(lambda self: len(self._saved) < MOST_SNAPSHOTS)
    @rule(target=snapshots, box=boxes)
    def snapshot(self, box: Box) -> Saved:
        saved = Saved(self._run(box.sandbox.snapshot()), box.state.saved())
        self._saved.append(saved)
        return saved

    @rule(box=boxes, saved=snapshots)
    def reset(self, box: Box, saved: Saved) -> None:
        before = box.sandbox.id
        self._run(box.sandbox.reset(saved.snapshot))
        assert box.sandbox.id == before
        box.take(saved.state)

    @rule(box=boxes, count=st.integers(1, 2))
    def fork(self, box: Box, count: int) -> None:
        async def group() -> None:
            async with box.sandbox.fork(count) as children:
                for child in children:
                    state = box.state.saved()
                    await compare(self.ground, child, state)
                    await compare_shells(child, state)
                    await child.remove(ROOT, recursive=True)  # its own affair

        self._run(group())

    @rule(saved=consumes(snapshots))
    def discard(self, saved: Saved) -> None:
        async def refused() -> None:
            await self.ground.substrate.discard(saved.snapshot)
            box = Sandbox(self.ground.substrate, saved.snapshot, ttl_s=600)
            with pytest.raises(SpecError):
                await box.open()

        self._saved.remove(saved)
        self._run(refused())

    # ---- what always holds

    @invariant()
    def all_are_as_the_model_says(self) -> None:
        async def look() -> None:
            for box in self._open:
                await compare(self.ground, box.sandbox, box.state)

        self._run(look())

    def teardown(self) -> None:
        async def end() -> None:
            for box in self._open:
                await compare_shells(box.sandbox, box.state)
                await box.sandbox.close()
            for saved in self._saved:
                await self.ground.substrate.discard(saved.snapshot)

        self._run(end())


EXAMPLES = {"fake": (80, 40), "namespace": (30, 40), "docker+guest": (3, 16)}
"""How many, and of how many steps: some seconds each."""


@pytest.mark.parametrize("address", EXAMPLES)
def test_states_in_any_order(address: str, runs_here: Callable[[str], None]) -> None:
    runs_here(address)
    ground = Ground(address)
    examples, steps = EXAMPLES[address]
    try:
        run_machine(
            type("Machine", (AnyStates,), {"ground": ground}),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        ground.close()

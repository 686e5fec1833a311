"""Files changed, states saved, gone back to and forked in any order: every sandbox is what a model of a filesystem says.

The model is a dict. Where it says that an operation cannot be, the sandbox must refuse it, and be as before.
"""

import asyncio
import copy
import io
import posixpath
import shlex
import tarfile
from collections.abc import Callable, Coroutine
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
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
        old = self.get(path)
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


class Change(NamedTuple):
    """One operation on files, in the model and inside."""

    verb: Literal["write", "append", "make_dir", "link", "chmod", "remove", "move"]
    path: str
    to: str
    """Where a move goes, what a link says."""
    data: bytes
    mode: int

    def leads_elsewhere(self, files: Files) -> bool:
        """Through a link, or into a directory that programs mean when it is named as a goal."""
        named = self.verb in ("remove", "move", "link")
        if self.verb == "link" and self.path in files and files[self.path].kind == "dir":
            return True
        return files.through_link(self.path, final=not named) or (
            self.verb == "move" and files.through_link(self.to, final=False)
        )

    def imagine(self, files: Files) -> None:
        match self.verb:
            case "write":
                files.write(self.path, self.data, self.mode)
            case "append":
                files.append(self.path, b"more\n")
            case "make_dir":
                files.make_dir(self.path)
            case "link":
                files.link(self.path, self.to)
            case "chmod":
                files.chmod(self.path, self.mode)
            case "remove":
                files.remove(self.path)
            case "move":
                files.move(self.path, self.to)

    async def do(self, box: Sandbox) -> None:
        at = f"{ROOT}/{self.path}"
        match self.verb:
            case "write":
                await box.write(at, self.data, mode=self.mode)
            case "append":  # as a program does, in place: what lies in a layer is copied up
                await shell(box, f"test -f {self.path} && echo more >> {self.path}")
            case "make_dir":
                await box.make_dir(at)
            case "link":
                await shell(box, f"ln -s {self.to} {self.path}")
            case "chmod":
                await shell(box, f"chmod {self.mode:o} {self.path}")
            case "remove":
                await box.remove(at, recursive=True)
            case "move":
                await box.move(at, f"{ROOT}/{self.to}")


CHANGES = st.builds(
    Change,
    verb=st.sampled_from(["write", "append", "make_dir", "link", "chmod", "remove", "move"]),
    path=PATHS,
    to=PATHS,
    data=st.binary(max_size=6),
    mode=st.sampled_from([0o600, 0o644, 0o755]),
)


async def shell(box: Sandbox, text: str) -> None:
    seen = await box.run(f"cd {ROOT} && {text}")
    if not seen.ok:
        raise OSError(seen.text)


# ---- what it is compared with


class Ground:
    """One open substrate, for all examples of a run."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_pretended = address == "fake"
        self._runner = asyncio.Runner(loop_factory=VirtualLoop if self.is_pretended else None)
        self.substrate: Substrate = self.run(self._connect())
        self.diffs = self.run(self.substrate.probe()).diff

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


def changes_of(before: Files, after: Files) -> dict[str, str]:
    """What `diff` has to tell. Where one kind of thing took the place of another it may choose its words: that is left out."""
    found: dict[str, str] = {}
    for path in before.keys() | after.keys():
        was, now = before.get(path), after.get(path)
        if _another_kind(before, after, path):
            continue
        if was is None:
            found[path] = "added"
        elif now is None:
            if posixpath.dirname(path) in after or "/" not in path:  # what was in a deleted directory is not listed
                found[path] = "deleted"
        elif was != now and now.kind != "dir":
            found[path] = "modified"
    return found


def _another_kind(before: Files, after: Files, path: str) -> bool:
    parts = path.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(name in before and name in after and before[name].kind != after[name].kind for name in above)


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
        self._lively = False

    @initialize(lively=st.booleans())
    def begin(self, lively: bool) -> None:
        """Whether sessions and processes live in these sandboxes: where none does, a snapshot is made another way."""
        self._lively = lively

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.ground.run(work)

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

    @precondition(lambda self: len(self._open) == MOST_BOXES)
    @rule(box=consumes(boxes))
    def close(self, box: Box) -> None:
        self._open.remove(box)
        self._run(box.sandbox.close())

    # ---- files

    @rule(box=boxes, changes=st.lists(CHANGES, min_size=1, max_size=4))
    def change_files(self, box: Box, changes: list[Change]) -> None:
        self._apply(box, changes)

    def _apply(self, box: Box, changes: list[Change]) -> None:
        for change in changes:
            self._change(box, change)

    def _change(self, box: Box, change: Change) -> None:
        """The same in the model and inside: it is done in both, or refused by both."""
        if change.leads_elsewhere(box.state.files):
            return
        changed = copy.copy(box.state.files)
        try:
            change.imagine(changed)
        except OSError:
            with pytest.raises(OSError):  # noqa: PT011 - which one is the contract's affair
                self._run(change.do(box.sandbox))
            return
        self._run(change.do(box.sandbox))
        box.state.files = changed

    # ---- what is no file of the state

    @rule(box=boxes, name=st.sampled_from(["x", "y"]))
    def write_in_tmp(self, box: Box, name: str) -> None:
        self._run(box.sandbox.write(f"/tmp/{name}", name))
        box.state.scratch.add(name)

    @precondition(lambda self: self._lively)
    @rule(box=boxes)
    def leave_running(self, box: Box) -> None:
        is_there = "" if self.ground.is_pretended else 'until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done'
        seen = self._run(box.sandbox.run(f"sleep 271828 >/dev/null 2>&1 & {is_there}"))
        assert seen.ok
        box.state.left_running += 1

    @precondition(lambda self: self._lively)
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

    @precondition(lambda self: self._lively)
    @rule(box=boxes)
    def look_at_sessions(self, box: Box) -> None:
        self._run(compare_shells(box.sandbox, box.state))

    # ---- states

    @precondition(lambda self: len(self._saved) < MOST_SNAPSHOTS)
    @rule(target=snapshots, box=boxes, changes=st.lists(CHANGES, max_size=2))
    def snapshot(self, box: Box, changes: list[Change]) -> Saved:
        self._apply(box, changes)
        saved = Saved(self._run(box.sandbox.snapshot()), box.state.saved())
        self._saved.append(saved)
        return saved

    @rule(box=boxes, saved=snapshots, changes=st.lists(CHANGES, max_size=2))
    def reset(self, box: Box, saved: Saved, changes: list[Change]) -> None:
        self._apply(box, changes)
        before = box.sandbox.id
        self._run(box.sandbox.reset(saved.snapshot))
        assert box.sandbox.id == before
        box.take(saved.state)

    @precondition(lambda self: "snapshot" in self.ground.diffs)
    @rule(box=boxes, saved=snapshots)
    def diff(self, box: Box, saved: Saved) -> None:
        before, after = saved.state.files, box.state.files
        seen = self._run(box.sandbox.diff(saved.snapshot, under=ROOT))
        told = {change.path.removeprefix(f"{ROOT}/"): change.kind for change in seen}
        same_modes = {path for path in before if path in after and before[path].kind == after[path].kind == "dir"}
        assert {
            path: kind for path, kind in told.items() if path not in same_modes and not _another_kind(before, after, path)
        } == changes_of(before, after)

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

    @precondition(lambda self: len(self._saved) == MOST_SNAPSHOTS)
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
            for saved in self._saved:  # each is still what it was, whatever became of those it was taken of
                async with Sandbox(self.ground.substrate, saved.snapshot, ttl_s=600) as box:
                    state = saved.state.saved()
                    await compare(self.ground, box, state)
                    await compare_shells(box, state)
                await self.ground.substrate.discard(saved.snapshot)

        self._run(end())


EXAMPLES = {"fake": (60, 40), "namespace": (20, 30), "namespace?prove=1": (8, 30), "docker+guest": (4, 12)}
"""How many, and of how many steps: some seconds each."""
SHRINKS = frozenset({"fake"})
"""Elsewhere the tries that make a failing example smaller would take minutes."""


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
                phases=[Phase.generate, *([Phase.shrink] if address in SHRINKS else [])],
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            ),
        )
    finally:
        ground.close()

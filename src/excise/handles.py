"""What every implementation of a Handle does the same way, written once for all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from excise.action import Action, Batch, Command, End, Exec, Exit, Keep, Observation, Output
from excise.errors import CreateError, ExciseError, SandboxLost, SpecError
from excise.output import Kept
from excise.spec import Spec
from excise.substrate import Change, Connection, Handle, Process, Snapshot, unsupported
from excise.trace import SETUP, begin_stage

FIRST_PROBE_PAUSE_S = 0.01
LONGEST_PROBE_PAUSE_S = 0.5
LONGEST_REASON = 2000
"""Characters of a program's output in an error of ours."""
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


def environment(image: Mapping[str, str], spec: Spec, action: Command | None = None) -> dict[str, str]:
    """The variables an action sees: the image's, the spec's, its secrets, and its own, the later winning."""
    secrets = {name: secret.reveal() for name, secret in spec.secrets.items()}
    return {**image, **spec.env, **secrets, **(action.env if action is not None else {})}


async def observe(process: Process, keep: Keep) -> Observation:
    """Read a process to its end, keeping the head and the tail of each stream."""
    kept = {"stdout": Kept(keep), "stderr": Kept(keep)}
    ended: Observation | None = None
    async for event in process.events():
        match event:
            case Output(stream, data):
                kept[stream].feed(data)
            case Exit(observation):
                ended = observation
    if ended is None:
        raise SandboxLost("a process's events ended without its exit")
    return msgspec.structs.replace(
        ended,
        stdout=kept["stdout"].bytes(),
        stderr=kept["stderr"].bytes(),
        dropped_bytes=sum(k.dropped_bytes for k in kept.values()),
    )


class Runs(Protocol):
    """A Handle, as far as a Batch needs one."""

    async def run(self, action: Action) -> Observation: ...


async def run_batch(handle: Runs, batch: Batch) -> Observation:
    """Run the parts in turn; for substrates whose wire has no batch of its own."""
    parts: list[Observation] = []
    for action in batch.actions:
        parts.append(await handle.run(action))
        if batch.stop_on_failure and not parts[-1].ok:
            break
    return combine(parts)


def combine(parts: list[Observation]) -> Observation:
    """A Batch's Observation: it exits as its last part did."""
    last = parts[-1] if parts else Observation()
    guest = [p.guest_ns for p in parts]
    return Observation(
        end=last.end,
        exit_code=last.exit_code,
        signal=last.signal,
        guest_ns=None if None in guest else sum(g for g in guest if g is not None),
        still_running=any(p.still_running for p in parts),
        parts=tuple(parts),
    )


async def make_ready(
    handle: Handle, spec: Spec, first: Action | None = None, built: Callable[[], Awaitable[None]] | None = None
) -> None:
    """A first command's result, then the spec's steps, boot commands and ready probes: the start state.

    `built` is called between the steps and the boot commands.
    """
    answer = await handle.run(first if first is not None else Exec(("true",), timeout_s=60))
    if not answer.ok:
        raise _no_first_result(answer, spec)
    await prepare(handle, spec, built)


async def prepare(handle: Handle, spec: Spec, built: Callable[[], Awaitable[None]] | None = None) -> None:
    """The spec's steps, boot commands and ready probes, in a sandbox that has answered before; `built` as above."""
    steps = spec.all_steps()
    if steps:
        begin_stage(SETUP)
    for step in steps:
        seen = await handle.run(Batch(step.actions))
        if not seen.ok:
            raise CreateError(f"step {step.name!r} failed: {_last_words(seen.parts[-1], spec)}")
    if built is not None:
        await built()
    await start_up(handle, spec)


class Readiness:
    """Whether a sandbox has its start state, and what leads there: once is enough, until it becomes another spec's."""

    def __init__(self, *, ready: bool = False) -> None:
        self.turn = asyncio.Lock()
        """Held by whoever changes it."""
        self._ready = ready
        self._adopted = False

    def adopt(self) -> None:
        """It is another spec's now. One that was ready has answered a first command."""
        self._adopted, self._ready = self._adopted or self._ready, False

    async def reach(self, handle: Handle, spec: Spec, first: Callable[[], tuple[Spec, Action | None]] | None = None) -> None:
        """`first`: what there is to do instead, and the first command, of one that nobody has adopted."""
        if self._ready:
            return
        if self._adopted:
            await prepare(handle, spec)
        elif first is None:
            await make_ready(handle, spec)
        else:
            await make_ready(handle, *first())
        self._ready = True


def _no_first_result(seen: Observation, spec: Spec) -> ExciseError:
    """`true` has failed. Where no program can run as the spec wants it, trying again does not help."""
    limits = {End.OUT_OF_MEMORY: "memory_bytes", End.OUT_OF_PIDS: "pids", End.OUT_OF_DISK: "disk_bytes"}
    if (name := limits.get(seen.end)) is not None and getattr(spec.limits, name) is not None:
        return SpecError(f"limits.{name}={getattr(spec.limits, name)} is too little for any program: raise it")
    if seen.exit_code in (_NOT_EXECUTABLE, _NOT_FOUND):
        said = without_secrets(seen.stderr.decode("utf-8", "replace"), spec).strip()
        return SpecError(f"no program starts with this spec's image, user, workdir and env: {said[-LONGEST_REASON:]}")
    return CreateError(f"the sandbox's first command failed: {_last_words(seen, spec)}")


def _last_words(seen: Observation, spec: Spec) -> str:
    """The end of what a failed command printed, which says why more often than its beginning does."""
    printed = without_secrets(seen.text, spec).strip()
    return printed[-LONGEST_REASON:] or seen.end.value


def without_secrets(text: str, spec: Spec) -> str:
    """`text`, as it may appear in an error: what a program printed may hold a secret it was given."""
    # The longest first: one that begins with another would else lose its beginning only.
    for value in sorted((secret.reveal() for secret in spec.secrets.values()), key=len, reverse=True):
        text = text.replace(value, "***") if value else text
    return text


async def start_up(handle: Handle, spec: Spec) -> None:
    """Boot commands and ready probes, as after every create, reset and fork."""
    if spec.boot or spec.ready:
        begin_stage(SETUP)
    for command in spec.boot:
        await handle.run(_left_running(command))
    for probe in spec.ready:
        pause_s = FIRST_PROBE_PAUSE_S
        while not (await handle.run(probe)).ok:
            # A service inside tells nobody outside that it is up: asking again is all there is. The caller's deadline ends it.
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PROBE_PAUSE_S)


def _left_running(command: Command) -> Command:
    """`command` in the background. Nobody reads what a service prints, so it goes nowhere rather than stall it."""
    argv = command.argv if isinstance(command, Exec) else ("/bin/sh", "-c", command.script)
    common = {name: getattr(command, name) for name in ("cwd", "env", "user")}
    return Exec(("/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh", *argv), timeout_s=60, **common)


def failed_file(number: int) -> Observation:
    """A file action that the sandbox's own file system refused."""
    return Observation(end=End.EXITED, exit_code=1, errno=number)


async def finish(cleanup: Awaitable[object]) -> None:
    """Carry a cleanup to its end even if the caller is cancelled meanwhile; the cancellation comes after it."""
    task = asyncio.ensure_future(cleanup)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except Exception:  # noqa: BLE001 - raised again by task.result() below
            break
    task.result()
    if cancelled is not None:
        raise cancelled


class Undeclared:
    """The verbs of abilities that a substrate need not have: a Handle that has one overrides it."""

    _address: str

    async def connect(self, port: int) -> Connection:
        raise unsupported(self._address, f"connect({port})")

    async def snapshot(self, *, keep_s: float | None = None) -> Snapshot:
        raise unsupported(self._address, "snapshot")

    async def reset(self, snapshot: Snapshot) -> None:
        raise unsupported(self._address, "reset")

    async def diff(self, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        raise unsupported(self._address, "diff")

    async def pause(self) -> None:
        raise unsupported(self._address, "pause")

    async def resume(self) -> None:
        raise unsupported(self._address, "resume")

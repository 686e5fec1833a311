"""One life of a sandbox, from create or reset to the next reset or close: a machine and what runs on it."""

import errno
import os
import posixpath
from collections.abc import Mapping

import msgspec

from excise.action import Command, Exec, Shell
from excise.errors import SandboxLost, SpecError
from excise.handles import environment
from excise.session_state import kept
from excise.spec import Limits, Spec
from excise.substrate import SessionState
from excise.substrates.fake.file_actions import FileWork
from excise.substrates.fake.files import ROOT, SEARCH, Tree, Who
from excise.substrates.fake.image import ENV, WORKDIR, limit
from excise.substrates.fake.launch import become, find_program, said
from excise.substrates.fake.machine import Machine
from excise.substrates.fake.pipes import ReadEnd, Stream, WriteEnd
from excise.substrates.fake.proc import Body, Descriptors, Job, Proc, Program
from excise.substrates.fake.process import FakeProcess, Wires
from excise.substrates.fake.sessions import Session, SessionCommand, SessionShell, refuse_options

_NOT_TAKEN_ON = {
    "adopted-memory-limit-holds": "limits",
    "adopted-pids-limit-holds": "limits",
    "adopted-disk-limit-holds": "limits",
    "adopted-secrets-reach": "secrets",
}


class Life:
    """Starts actions, and ends as a whole."""

    def __init__(
        self,
        tree: Tree,
        spec: Spec,
        programs: Mapping[str, Program],
        *,
        namespace: int = 0,
        guest_s: float = 0.0,
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self.spec = spec
        self.broken = broken
        self.guest_s = guest_s
        self.machine = Machine(limit(tree, spec.limits), spec.limits, programs, namespace, broken)
        self.machine.network = spec.network or "none"
        self.workdir = WORKDIR if spec.workdir is None or "workdir-is-honoured" in broken else spec.workdir
        tree.make_dir(self.workdir, parents=True)
        self.sessions: dict[str, Session] = {}
        self._carried: dict[str, SessionState] = {}
        """How sessions begin that a snapshot had."""
        self._under_way: set[FakeProcess] = set()

    def take_on(self, spec: Spec) -> None:
        """Be a life of `spec`, on its terms: but for those that are kept as they were because that is what is broken."""
        terms, before = spec, self.spec
        for name, field in _NOT_TAKEN_ON.items():
            if name in self.broken:
                terms = msgspec.structs.replace(terms, **{field: getattr(before, field)})
        if "lifted-limits-are-lifted" in self.broken:
            kept = {name: getattr(spec.limits, name) or getattr(before.limits, name) for name in Limits.__struct_fields__}
            terms = msgspec.structs.replace(terms, limits=Limits(**kept))
        self.spec = terms
        limit(self.machine.tree, terms.limits)
        self.machine.limits = terms.limits
        self.machine.account()
        self.machine.network = terms.network or "none"

    def end(self, reason: str) -> None:
        """Every process is dead when this returns, and whoever waits for an answer hears that there is none."""
        self.machine.gone = reason
        for session in self.sessions.values():
            session.abandon(reason)
        self.machine.kill_all()

    def go_on(self, tree: Tree) -> None:
        """What a broken reset does: other files under what ought to have ended."""
        keeps_sessions = "reset-forgets-sessions" in self.broken
        for proc in list(self.machine.processes.values()):
            if proc.job.is_action == keeps_sessions:
                proc.stop()
        if not keeps_sessions:
            self.sessions.clear()
        self.machine.tree = tree

    # ---- who and where

    def who(self, asked: str | None) -> Who:
        name = asked if asked is not None else self.spec.user
        if name is None or "user-is-honoured" in self.broken:
            return ROOT
        found = self.machine.user(name)
        if found is None:
            raise SpecError(f"no user is called {name!r} inside; name one of /etc/passwd, or a number")
        return found

    def files(self) -> FileWork:
        return FileWork(self.machine.tree, self.who(None), self.workdir, self.broken)

    def _env(self, action: Command | None) -> dict[str, str]:
        env = environment(ENV, self.spec, None if "env" in self.broken else action)
        if "secret-reaches-the-action" in self.broken:
            env = {name: value for name, value in env.items() if name not in self.spec.secrets}
        return {**os.environ, **env} if "host-env-stays-out" in self.broken else env

    def _cwd(self, action: Command) -> str:
        if action.cwd is None or "cwd" in self.broken:
            return "/" if "workdir-is-cwd" in self.broken and isinstance(action, Exec) else self.workdir
        path = posixpath.normpath(posixpath.join(self.workdir, action.cwd))
        return path if "cwd-missing" not in self.broken or self.machine.tree.exists(path) else self.workdir

    # ---- starting

    async def start(self, action: Command) -> FakeProcess:
        """Start the action's main process, or hand its script to a session once it is its turn."""
        if isinstance(action, Shell) and action.session is not None:
            return await self._start_in_session(action, action.session)
        wires = Wires(action, self.broken)
        job = Job(is_action=True)
        proc = self._spawn(self._body(action), job, wires, action)
        proc.argv = list(action.argv) if isinstance(action, Exec) else ["sh", "-c", action.script]
        proc.over = wires.changed
        return self._process(job, action, proc, wires)

    def _process(self, job: Job, action: Command, main: Proc | SessionCommand, wires: Wires) -> FakeProcess:
        return FakeProcess(self.machine, job, action, main, wires=wires, under_way=self._under_way, broken=self.broken)

    def _spawn(self, body: Body, job: Job, wires: Wires, action: Command) -> Proc:
        who, cwd, env = self.who(action.user), self._cwd(action), self._env(action)
        proc = self.machine.spawn(body, files=_descriptors(wires, self._merges(action)), job=job)
        proc.who, proc.cwd, proc.env = who, cwd, env
        return proc

    def _merges(self, action: Command) -> bool:
        return action.merge and "merge-is-true-order" not in self.broken

    def _body(self, action: Command) -> Body:
        argv = list(action.argv) if isinstance(action, Exec) else ["sh", "-c", action.script]
        if "argv-exact" in self.broken:
            argv = [*argv[:3], *" ".join(argv[3:]).split()]

        async def body(proc: Proc) -> int:
            await proc.sleep(self.guest_s)
            try:
                proc.who.check(self.machine.tree.directory(proc.cwd, proc.who), SEARCH)
                program = find_program(proc, argv[0], proc.env.get("PATH", ""))
            except OSError as error:
                await proc.write(2, f"{argv[0]}: {said(error)}\n".encode("utf-8", "surrogateescape"))
                return 126 if error.errno != errno.ENOENT else 127
            return await become(proc, program, argv, proc.env)

        return body

    # ---- sessions

    async def _start_in_session(self, action: Shell, name: str) -> FakeProcess:
        refuse_options(action)
        name = "the one" if "sessions-side-by-side" in self.broken else name
        session = self.sessions.setdefault(name, Session(self.broken))
        await session.turn()
        if self.machine.gone is not None:
            session.give_turn()
            raise SandboxLost(self.machine.gone)
        self._stand_in(session, action, self._carried.pop(name, None))
        wires = Wires(action, self.broken)
        job = Job(is_action=True)
        wires.keys.writers = 0  # a session's command has no stdin of its own
        files = _descriptors(wires, self._merges(action))
        command = SessionCommand(session, action.script, job, files, wires.changed)
        command.begin(self.guest_s)
        return self._process(job, action, command, wires)

    def begin_sessions_with(self, states: tuple[SessionState, ...]) -> None:
        if "snapshot-keeps-sessions" not in self.broken:
            self._carried = {state.name: state for state in states}

    def session_states(self) -> tuple[SessionState, ...]:
        """What a snapshot keeps of the sessions, those included that nobody has used since they were carried here."""
        spec = msgspec.structs.replace(self.spec, secrets={}) if "snapshot-keeps-no-secret" in self.broken else self.spec
        base, found = self._env(None), dict(self._carried)
        for name, session in self.sessions.items():
            if session.shell is not None:
                found[name] = kept(name, session.shell.proc.cwd, session.shell.exported(), base, spec)
        return tuple(found.values())

    def _stand_in(self, session: Session, action: Shell, carried: SessionState | None) -> None:
        """See to it that a living shell stands behind the session."""
        if session.shell is not None and "session-keeps-state" in self.broken:
            session.shell.proc.stop()
            session.shell = None
        if session.shell is not None and session.shell.proc.status is not None:
            session.shell = None
            session.lost_unseen = True
        if session.shell is None:
            session.shell = SessionShell()
            wires = Wires(action, self.broken)
            proc = self._spawn(session.shell.live, Job(), wires, Shell(""))
            proc.argv = ["bash"]
            if carried is not None:
                proc.cwd = carried.cwd if self.machine.tree.exists(carried.cwd) else proc.cwd
                proc.env = {**{k: v for k, v in proc.env.items() if k not in carried.unset}, **carried.env}
            session.shell.attach(proc)


def _descriptors(wires: Wires, merges: bool) -> Descriptors:
    if wires.terminal is not None:
        return Descriptors(dict.fromkeys((0, 1, 2), wires.terminal))
    out: Stream = WriteEnd(wires.stdout)
    err: Stream = out if merges else WriteEnd(wires.stderr)
    return Descriptors({0: ReadEnd(wires.keys), 1: out, 2: err})

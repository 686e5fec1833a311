"""A persistent bash: its commands arrive one at a time, and each one's status is an event on a descriptor of its own.

The shell is interactive without a terminal, because only an interactive bash gives up a whole command list on SIGINT
and lives on with its directory and variables. What a command starts never holds the status descriptor: it is closed
around each command, and bash keeps its own copy closed on exec.
"""

import contextlib
import os
import secrets
import select
import shlex
import signal
import socket
import time
from typing import Any

from excise.host import packets
from excise.host.descendants import Tree
from excise.host.kernel import become_subreaper
from excise.host.runner import NOT_FOUND, Place, answer, find_program

_STATUS = 253
_STDERR = 252
_INTERRUPT_ROUNDS_S = (0.05, 0.1, 0.2, 0.4, 0.8)
_GREETING = f"exec 2>&{_STDERR} {_STDERR}>&-; set +H +o history; unset HISTFILE MAILCHECK; PS1= PS2="


class _Gone(Exception):  # noqa: N818
    """The client is gone, and the session with it."""


class _Shell:
    """One bash process and the three descriptors that lead to it."""

    def __init__(self, environment: dict[str, str], streams: list[int]) -> None:
        commands, self.commands = os.pipe()
        self.status, status = os.pipe()
        null = os.open("/dev/null", os.O_RDWR)
        # Until the greeting is done, stderr is nowhere: an interactive bash first complains that it has no terminal.
        actions = [
            (os.POSIX_SPAWN_DUP2, source, number)
            for source, number in ((commands, 0), (streams[1], 1), (null, 2), (streams[2], _STDERR), (status, _STATUS))
        ]
        argv = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
        program = find_program("bash", environment)
        self.pid = os.posix_spawn(
            program, argv, environment, file_actions=actions, setsid=True, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
        )
        self.end = os.pidfd_open(self.pid)
        for descriptor in (commands, status, null):
            os.close(descriptor)
        self.say(_GREETING)

    def say(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.commands, line.encode() + b"\n")

    def close(self) -> None:
        for descriptor in (self.commands, self.status, self.end):
            os.close(descriptor)


class _Session:
    def __init__(self, environment: dict[str, str], reply: socket.socket, streams: list[int], tree: Tree) -> None:
        self.environment = environment
        self.reply = reply
        self.streams = streams
        self.tree = tree
        self.shell = _Shell(environment, streams)

    def serve(self) -> None:
        while (packet := packets.receive(self.reply)) is not None:
            order, descriptors = packet
            if "run" in order:
                answer(self.reply, self._command(packets.read_body(descriptors[0])))

    def _command(self, request: dict[str, Any]) -> dict[str, Any]:
        if _ended(self.shell):
            self._replace()
        earlier = self._below()
        nonce = secrets.token_hex(8)
        merge = "2>&1 " if request["merge"] else ""
        began_ns = time.monotonic_ns()
        # On a line of its own, because bash drops the rest of a line when SIGINT ends it or the program it waits for.
        # `builtin`, because a session may have functions of any name.
        self._say_all(f"builtin eval {shlex.quote(request['script'])} </dev/null {merge}{_STATUS}>&-\n{_report(nonce)}")
        code, killed = self._await_status(nonce, earlier)
        outcome: dict[str, Any] = {"guest_ns": time.monotonic_ns() - began_ns, "killed": killed, "code": code}
        if code is None:
            if killed:
                self.tree.kill_below((os.getpid(),), spare=earlier)
            outcome |= {**self._replace(), "replaced": True}
        return {**outcome, "living": bool(self._below() - earlier)}

    def _say_all(self, text: str) -> None:
        # Larger than a pipe holds is fine: bash reads while we write.
        view = memoryview(text.encode("utf-8", "surrogateescape"))
        with contextlib.suppress(BrokenPipeError):
            while view:
                view = view[os.write(self.shell.commands, view) :]

    def _below(self) -> frozenset[int]:
        """What commands have left running: below the shell, or orphaned to us."""
        for orphan in self.tree.children(os.getpid()):
            if orphan != self.shell.pid:
                os.waitpid(orphan, os.WNOHANG)
        return frozenset(self.tree.living(self.tree.below((os.getpid(),)))) - {self.shell.pid}

    def _await_status(self, nonce: str, earlier: frozenset[int]) -> tuple[int | None, bool]:
        """The command's status, or None if the shell is gone or stuck; and whether it was killed."""
        while True:
            ready, _, _ = select.select([self.shell.status, self.shell.end, self.reply], [], [])
            if self.shell.status in ready and (code := _status(self.shell, nonce)) is not None:
                return code, False
            if self.shell.end in ready:
                return None, False
            if self.reply not in ready:
                continue
            if (packet := packets.receive(self.reply)) is None:
                raise _Gone
            if "kill" in packet[0]:
                return self._interrupt(earlier), True

    def _interrupt(self, earlier: frozenset[int]) -> int | None:
        """Kill the command, keep the shell. None if the shell would not come back."""
        shell = self.shell
        for number, patience_s in enumerate(_INTERRUPT_ROUNDS_S):
            if number == 0:
                # A foreground program that dies of SIGINT makes bash drop the rest of the list, as Ctrl-C does.
                for pid in self.tree.below((shell.pid,), earlier):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGINT)
            else:
                self.tree.kill_below((shell.pid,), earlier)
            os.kill(shell.pid, signal.SIGINT)
            nonce = secrets.token_hex(8)
            # Blank lines first: an interrupted reader may drop the beginning of what comes next.
            shell.say(f"\n\n:\n{_report(nonce)}")
            deadline_s = time.monotonic() + patience_s
            while (left_s := deadline_s - time.monotonic()) > 0:
                ready, _, _ = select.select([shell.status, shell.end], [], [], left_s)
                if shell.end in ready:
                    return None
                if ready and (code := _status(shell, nonce)) is not None:
                    self.tree.kill_below((shell.pid,), earlier)
                    self.tree.kill_below((os.getpid(),), earlier | {shell.pid})
                    return code
        return None

    def _replace(self) -> dict[str, int | None]:
        """End the shell, if it lives, and stand a new one in its place; how the old one ended."""
        shell = self.shell
        with contextlib.suppress(ProcessLookupError):
            os.kill(shell.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(shell.pid, 0)[1])
        shell.close()
        self.shell = _Shell(self.environment, self.streams)
        return {"code": code if code >= 0 else None, "signal": -code if code < 0 else None}


def _report(nonce: str) -> str:
    """The line that makes the shell tell the last command's status."""
    return f"builtin printf '{nonce} %s\\n' $? >&{_STATUS}\n"


def _status(shell: _Shell, nonce: str) -> int | None:
    """The status that belongs to `nonce`, if it is among what has arrived."""
    for line in os.read(shell.status, 65536).decode("ascii", "replace").splitlines():
        word, _, code = line.partition(" ")
        if word == nonce and code.isdigit():
            return int(code)
    return None


def _ended(shell: _Shell) -> bool:
    return bool(select.select([shell.end], [], [], 0)[0])


def run(place: Place, request: dict[str, Any], reply: socket.socket, streams: list[int]) -> None:
    """Be the runner of one session until its client closes it."""
    become_subreaper()
    os.setsid()
    tree = Tree()  # before the root changes: it holds the host's /proc
    try:
        variables = place.enter(None, request["user"])
        session = _Session({**variables, **request["env"]}, reply, streams, tree)
    except (OSError, LookupError, ValueError) as error:
        answer(reply, {"code": NOT_FOUND, "error": f"a session needs bash in the image: {error}"})
        return
    answer(reply, {"open": True})
    with contextlib.suppress(_Gone):
        session.serve()
    session.tree.end_all()

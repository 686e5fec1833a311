"""How an exec gets from the machine's own system into the sandbox: one line of shell that ends as the sandbox's program."""

import posixpath
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from excise.action import Command
from excise.guestless.actions import Actions
from excise.guestless.inside import Start
from excise.guestless.process import GuestlessProcess
from excise.storage.users import numbers

ENV_FILE = "/run/excise/env"
"""In the machine's own memory: the variables that every action has, secrets among them, so that no command line holds them."""
# The sandbox's control group counts from the first program on, and what sshd is spared when memory runs out is for it alone.
# The variables go in front of the words that are already there. busybox, since it has no libraries to be linked with each time.
_LINE = (
    "echo 0 >/sys/fs/cgroup/sandbox.slice/cgroup.procs; echo 0 >/proc/self/oom_score_adj; "
    'set -- {words}; . {file}; exec /usr/bin/busybox env -i "$@"'
)
_AS_ROOT = ("/usr/bin/busybox", "chroot", "/sandbox")


class Entrance(msgspec.Struct, frozen=True, kw_only=True):
    """Who actions are unless they say otherwise, and what they have."""

    root: Path
    """The image's, whose own files say what users are called."""
    user: str | None
    variables: Mapping[str, str]
    """Those in the file: a command says its own only."""

    def command(self, start: Start) -> str:
        """The line for the machine's shell. Its program begins at the sandbox's root."""
        uid, gid = numbers(start.user or self.user or "0", self.root)
        env = {name: value for name, value in start.env.items() if self.variables.get(name) != value}
        if start.terminal and "TERM" not in self.variables:
            env.setdefault("TERM", "xterm")
        other = ("/usr/bin/unshare", "--root=/sandbox", "--wd=/", f"--setgid={gid}", f"--setuid={uid}", "--")
        words = (*(f"{name}={value}" for name, value in env.items()), *(other if uid or gid else _AS_ROOT), *start.argv)
        return _LINE.format(words=shlex.join(words), file=ENV_FILE)

    def keep(self) -> tuple[str, bytes]:
        """A command that writes the file, and its stdin."""
        words = shlex.join(f"{name}={value}" for name, value in self.variables.items())
        return f"umask 077; exec /usr/bin/busybox cat >{ENV_FILE}", f'set -- {words} "$@"\n'.encode()


class Placed(Actions):
    """Actions that begin in a working directory, which the exec itself does not know."""

    def __init__(self, workdir: str, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._workdir = workdir

    async def start(self, action: Command, *, interactive: bool = True) -> GuestlessProcess:
        where = posixpath.join(self._workdir, action.cwd or "")
        return await super().start(msgspec.structs.replace(action, cwd=where), interactive=interactive)

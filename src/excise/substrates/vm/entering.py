"""How an exec gets from the machine's own system into the sandbox: one line of shell that ends as the sandbox's program."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from excise.guestless.inside import Start
from excise.storage.users import numbers

ENV_FILE = "/run/excise/env"
"""In the machine's own memory: the variables that every action has, secrets among them, so that no command line holds them."""
# The sandbox's control group counts from the first program on, and what sshd is spared when memory runs out is for it alone.
# The variables go in front of the words that are already there.
_LINE = (
    "echo 0 >/sys/fs/cgroup/sandbox.slice/cgroup.procs; echo 0 >/proc/self/oom_score_adj; "
    'set -- {words}; . {file}; exec /usr/bin/env -i "$@"'
)


class Entrance(msgspec.Struct, frozen=True, kw_only=True):
    """Who and where actions are unless they say otherwise."""

    root: Path
    """The image's, whose own files say what users are called."""
    workdir: str
    user: str | None
    variables: Mapping[str, str]
    """Those in the file: a command says its own only."""

    def command(self, start: Start) -> str:
        """The line for the machine's shell."""
        uid, gid = numbers(start.user or self.user or "0", self.root)
        env = {name: value for name, value in start.env.items() if self.variables.get(name) != value}
        if start.terminal and "TERM" not in self.variables:
            env.setdefault("TERM", "xterm")
        become = (f"--setgid={gid}", f"--setuid={uid}") if uid or gid else ()
        words = (
            *(f"{name}={value}" for name, value in env.items()),
            *("/usr/bin/unshare", "--root=/sandbox", f"--wd={self.workdir}", *become, "--", *start.argv),
        )
        return _LINE.format(words=shlex.join(words), file=ENV_FILE)

    def keep(self) -> tuple[str, bytes]:
        """A command that writes the file, and its stdin."""
        words = shlex.join(f"{name}={value}" for name, value in self.variables.items())
        return f"umask 077; exec /usr/bin/busybox cat >{ENV_FILE}", f'set -- {words} "$@"\n'.encode()

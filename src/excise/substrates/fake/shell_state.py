"""What a shell remembers, and the ways a script can leave where it is."""

import fnmatch
from dataclasses import dataclass, field

from excise.substrates.fake.files import Directory
from excise.substrates.fake.proc import Proc
from excise.substrates.fake.script import Command
from excise.substrates.fake.special import node_at

LARGE_BYTES = 1 << 16


class Leave(Exception):  # noqa: N818 - control flow, as the three below
    """`exit`."""

    def __init__(self, code: int) -> None:
        self.code = code


class Return(Leave):
    """`return`."""


class LoopControl(Exception):  # noqa: N818
    """`break` and `continue`."""

    def __init__(self, depth: int, again: bool) -> None:
        self.depth = depth
        self.again = again


@dataclass(slots=True)
class Memory:
    """What a shell remembers; a subshell begins with a copy."""

    name: str = "sh"
    pid: int = 0
    variables: dict[str, str] = field(default_factory=dict[str, str])
    exported: set[str] = field(default_factory=set[str])
    functions: dict[str, Command] = field(default_factory=dict[str, Command])
    arguments: list[str] = field(default_factory=list[str])
    traps: dict[int, str] = field(default_factory=dict[int, str])
    status: int = 0
    last_background: int | None = None
    stops_on_error: bool = False

    def copy(self) -> "Memory":
        return Memory(
            self.name,
            self.pid,
            dict(self.variables),
            set(self.exported),
            dict(self.functions),
            list(self.arguments),
            {},
            self.status,
            self.last_background,
            self.stops_on_error,
        )


def remembering(proc: Proc, name: str = "sh", arguments: list[str] | None = None) -> Memory:
    """A new shell's memory: its process's environment."""
    return Memory(name, proc.pid, dict(proc.env), set(proc.env), arguments=arguments or [])


class Variables:
    """The half of a shell that expansion asks: names, values, patterns."""

    def __init__(self, proc: Proc, memory: Memory) -> None:
        self.proc = proc
        self.memory = memory

    @property
    def arguments(self) -> list[str]:
        return self.memory.arguments

    @arguments.setter
    def arguments(self, values: list[str]) -> None:
        self.memory.arguments = values

    def look_up(self, name: str) -> str | None:
        match name:
            case "?":
                return str(self.memory.status)
            case "$":
                return str(self.memory.pid)
            case "!":
                return None if self.memory.last_background is None else str(self.memory.last_background)
            case "#":
                return str(len(self.arguments))
            case "0":
                return self.memory.name
            case "-":
                return "e" if self.memory.stops_on_error else ""
            case _ if name.isdigit():
                return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else None
            case _:
                return self.memory.variables.get(name)

    def assign(self, name: str, value: str) -> None:
        self.proc.memory_bytes += len(value) - len(self.memory.variables.get(name, ""))
        self.memory.variables[name] = value
        if len(value) > LARGE_BYTES:
            self.proc.machine.account()

    def glob(self, shape: str) -> list[str]:
        found = ["/"] if shape.startswith("/") else [""]
        for part in shape.strip("/").split("/"):
            found = [f"{above}{name}/" for above in found for name in self._names_in(above or ".", part)]
        return sorted(path[:-1] for path in found)

    def _names_in(self, directory: str, shape: str) -> list[str]:
        try:
            node = node_at(self.proc, directory)
        except OSError:
            return []
        if not isinstance(node, Directory):
            return []
        return [n for n in node.entries if fnmatch.fnmatchcase(n, shape) and n.startswith(".") <= shape.startswith(".")]

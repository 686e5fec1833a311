"""mini-swe-agent's trajectory files as ours: the commands its model gave, their exit codes, and the time between."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from excise.action import Shell
from excise.errors import SpecError
from excise.trajectory import Line, Start

_IN_TEXT = re.compile(r"```(?:mswea_bash_command|bash)\s*\n(.*?)\n```", re.DOTALL)
_CODE = re.compile(r"<returncode>(-?\d+)</returncode>")


class _Action(msgspec.Struct, frozen=True):
    command: str


class _Extra(msgspec.Struct, frozen=True):
    actions: tuple[_Action, ...] = ()
    timestamp: float | None = None
    returncode: int | None = None
    exception_info: Any = None


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: Any = None
    extra: _Extra = _Extra()

    def commands(self) -> tuple[str, ...]:
        """Of the model: as version 2 stores them, or as version 1 wrote them into its text."""
        if self.role != "assistant":
            return ()
        if self.extra.actions:
            return tuple(action.command for action in self.extra.actions)
        return tuple(_IN_TEXT.findall(self.content))[:1] if isinstance(self.content, str) else ()

    def exit_code(self) -> int | None:
        """Of the command this message answers. A code below zero is the agent's word for a failure of its own."""
        code = self.extra.returncode
        if code is None and isinstance(self.content, str) and (found := _CODE.search(self.content)):
            code = int(found[1])
        return code if code is not None and code >= 0 and not self.extra.exception_info else None


class _Environment(msgspec.Struct, frozen=True):
    image: str | None = None
    cwd: str | None = None
    timeout: float | None = None


class _Config(msgspec.Struct, frozen=True):
    environment: _Environment = _Environment()


class _Info(msgspec.Struct, frozen=True):
    config: _Config = _Config()


class _File(msgspec.Struct, frozen=True):
    messages: tuple[_Message, ...]
    info: _Info = _Info()


def read(path: Path) -> tuple[Line, ...]:
    """The lines that a mini-swe-agent file comes to. Its environment variables stay behind: there may be keys in them."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise SpecError(f"{path} is not a trajectory that mini-swe-agent saved: {error}") from None
    where = file.info.config.environment
    # Without an image its directory was one of that host's.
    start = Start() if where.image is None else Start(image=where.image, workdir=where.cwd)
    lines = tuple(_lines(file.messages, where.timeout))
    if not lines:
        raise SpecError(f"{path} has no command of a model in it; it is not a trajectory that mini-swe-agent saved")
    return (Line(start=start), *lines)


def _lines(messages: Sequence[_Message], timeout_s: float | None) -> Iterator[Line]:
    before_s: float | None = None
    for index, message in enumerate(messages):
        answers = [one for one in messages[index + 1 : index + 1 + len(message.commands())] if one.role in ("user", "tool")]
        for number, command in enumerate(message.commands()):
            code = answers[number].exit_code() if number < len(answers) else None
            think_s = _between_s(before_s, message.extra.timestamp) if number == 0 else 0.0
            yield Line(action=Shell(command, timeout_s=timeout_s, merge=True), think_s=think_s, exit_code=code)
        if message.extra.timestamp is not None:
            before_s = message.extra.timestamp


def _between_s(before_s: float | None, now_s: float | None) -> float:
    return round(max(0.0, now_s - before_s), 6) if before_s is not None and now_s is not None else 0.0

"""From the words of a script to the strings a command is given: parameters, substitutions, arithmetic, splitting, patterns."""

import fnmatch
import re
from collections.abc import Callable
from typing import Protocol

from excise.substrates.fake.script import Arithmetic, Parameter, Part, Sequence, Substitution, Text, Word

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*|<=|>=|==|!=|&&|\|\||[-+*/%()<>!])")
_RANK = {"||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, ">": 4, "<=": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_APPLY: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: int(a / b),
    "%": lambda a, b: a - b * int(a / b),
}


class BadExpansion(Exception):  # noqa: N818 - what a shell says of it
    """A word that cannot be expanded; the shell prints why and gives the command up."""


class Scope(Protocol):
    """What expansion needs of a shell."""

    arguments: list[str]

    def look_up(self, name: str) -> str | None: ...
    def assign(self, name: str, value: str) -> None: ...
    async def substitute(self, script: Sequence) -> str: ...
    def glob(self, shape: str) -> list[str]: ...


async def fields(words: list[Word], scope: Scope) -> list[str]:
    """The arguments that `words` stand for: none, one or many each."""
    made: list[str] = []
    for word in words:
        builder = _Builder()
        for part in word:
            await _add(builder, part, scope)
        for field in builder.finish():
            made.extend(_matched(field, scope))
    return made


async def string(word: Word, scope: Scope) -> str:
    """The one string `word` stands for, where a shell does not split."""
    return "".join([await _value(part, scope) for part in word])


async def pattern(word: Word, scope: Scope) -> str:
    """`word` as a pattern: what is quoted in it stands for itself."""
    texts = [(await _value(part, scope), part.quoted) for part in word]
    return "".join(_escaped(text) if quoted else text for text, quoted in texts)


Piece = tuple[str, bool]


class _Builder:
    """Puts the pieces of one word together into fields."""

    def __init__(self) -> None:
        self._fields: list[list[Piece]] = []
        self._current: list[Piece] | None = None

    def add(self, text: str, quoted: bool) -> None:
        self._current = [*(self._current or []), (text, quoted)]

    def split(self) -> None:
        if self._current is not None:
            self._fields.append(self._current)
        self._current = None

    def finish(self) -> list[list[Piece]]:
        self.split()
        return self._fields


async def _add(builder: _Builder, part: Part, scope: Scope) -> None:
    if isinstance(part, Text):
        builder.add(part.text, part.quoted)
        return
    if isinstance(part, Parameter) and part.name in "@*" and not part.operator and (part.name == "@" or not part.quoted):
        for n, argument in enumerate(scope.arguments):
            if n:
                builder.split()
            _add_value(builder, argument, part.quoted)
        return
    _add_value(builder, await _value(part, scope), part.quoted)


def _add_value(builder: _Builder, value: str, quoted: bool) -> None:
    """What an expansion gave: split at blanks unless it was quoted."""
    if quoted:
        builder.add(value, quoted=True)
        return
    if value[:1].isspace():
        builder.split()
    for n, piece in enumerate(value.split()):
        if n:
            builder.split()
        builder.add(piece, quoted=False)
    if value[-1:].isspace():
        builder.split()


def _matched(field: list[Piece], scope: Scope) -> list[str]:
    plain = "".join(text for text, _ in field)
    if any(not quoted and any(c in text for c in "*?[") for text, quoted in field):
        found = scope.glob("".join(_escaped(text) if quoted else text for text, quoted in field))
        return found or [plain]
    return [plain]


def _escaped(text: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", text)


async def _value(part: Part, scope: Scope) -> str:
    match part:
        case Text(text):
            return text
        case Substitution(script):
            return await scope.substitute(script)
        case Arithmetic(expression):
            return str(_Sum(await string(expression, scope), scope).total())
        case Parameter():
            return await _parameter(part, scope)


async def _parameter(part: Parameter, scope: Scope) -> str:
    value = " ".join(scope.arguments) if part.name in "@*" else scope.look_up(part.name)
    operator = part.operator
    if operator == "length":
        return str(len(value or ""))
    if operator[:1] in ("%", "#") and operator:
        return _trimmed(value or "", operator, await pattern(part.word, scope))
    absent = value is None or (operator.startswith(":") and value == "")
    match operator[-1:]:
        case "-" if absent:
            return await string(part.word, scope)
        case "=" if absent:
            value = await string(part.word, scope)
            scope.assign(part.name, value)
        case "+":
            return "" if absent else await string(part.word, scope)
        case "?" if absent:
            raise BadExpansion(f"{part.name}: {await string(part.word, scope) or 'parameter not set'}")
        case _:
            pass
    return value or ""


def _trimmed(value: str, operator: str, shape: str) -> str:
    """`${x#shape}` and its three siblings."""
    cuts = range(len(value) + 1)
    longest = len(operator) == 2
    if operator[0] == "#":
        hits = [n for n in cuts if fnmatch.fnmatchcase(value[:n], shape)]
        return value[max(hits) if longest else min(hits) :] if hits else value
    hits = [n for n in cuts if fnmatch.fnmatchcase(value[n:], shape)]
    return value[: min(hits) if longest else max(hits)] if hits else value


class _Sum:
    """Integer arithmetic, by precedence climbing."""

    def __init__(self, text: str, scope: Scope) -> None:
        self._tokens: list[str] = []
        self._scope = scope
        at = 0
        text = text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if not found:
                raise BadExpansion(f"arithmetic expression: expecting EOF: {text!r}")
            self._tokens.append(found[1])
            at = found.end()

    def total(self) -> int:
        value = self._binary(0) if self._tokens else 0
        if self._tokens:
            raise BadExpansion("arithmetic expression: syntax error")
        return value

    def _binary(self, rank: int) -> int:
        left = self._unary()
        while self._tokens and _RANK.get(self._tokens[0], 0) > rank:
            operator = self._tokens.pop(0)
            right = self._binary(_RANK[operator])
            if operator in "/%" and right == 0:
                raise BadExpansion("division by zero")
            left = _APPLY[operator](left, right)
        return left

    def _unary(self) -> int:
        symbol = self._tokens.pop(0) if self._tokens else ")"
        if symbol in ("-", "+", "!"):
            value = self._unary()
            return {"-": -value, "+": value, "!": int(not value)}[symbol]
        if symbol == "(":
            value = self._binary(0)
            if self._tokens[:1] != [")"]:
                raise BadExpansion("arithmetic expression: expecting ')'")
            self._tokens.pop(0)
            return value
        if symbol.isdigit():
            return int(symbol)
        if not (symbol[0].isalpha() or symbol[0] == "_"):
            raise BadExpansion("arithmetic expression: expecting primary")
        value = self._scope.look_up(symbol) or "0"
        return int(value) if re.fullmatch(r"-?\d+", value) else 0

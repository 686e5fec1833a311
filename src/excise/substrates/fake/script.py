"""The tree of a script: what the parser makes and the shell walks."""

from dataclasses import dataclass, field

# ---- words


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """`$name`, `${name}`, `${name:-word}`, `${#name}`."""

    name: str
    quoted: bool
    operator: str = ""
    word: "Word" = ()


@dataclass(frozen=True, slots=True)
class Substitution:
    """`$(script)`."""

    script: "Sequence"
    quoted: bool


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`$((expression))`."""

    expression: "Word"
    quoted: bool


Part = Text | Parameter | Substitution | Arithmetic
Word = tuple[Part, ...]


# ---- commands


@dataclass(slots=True)
class Redirect:
    descriptor: int
    operator: str
    word: Word


@dataclass(slots=True)
class Simple:
    assignments: list[tuple[str, Word]] = field(default_factory=list[tuple[str, Word]])
    words: list[Word] = field(default_factory=list[Word])
    redirects: list[Redirect] = field(default_factory=list[Redirect])


@dataclass(slots=True)
class Sequence:
    """Commands in turn; a true beside one puts it in the background."""

    items: list[tuple["Command", bool]] = field(default_factory=list[tuple["Command", bool]])


@dataclass(slots=True)
class Pipeline:
    commands: list["Command"]
    negated: bool = False


@dataclass(slots=True)
class Both:
    """`left && right`, or `left || right`."""

    left: "Command"
    operator: str
    right: "Command"


@dataclass(slots=True)
class Group:
    body: Sequence
    subshell: bool


@dataclass(slots=True)
class If:
    condition: Sequence
    then: Sequence
    otherwise: "Sequence | If | None"


@dataclass(slots=True)
class While:
    condition: Sequence
    body: Sequence
    until: bool


@dataclass(slots=True)
class For:
    name: str
    words: list[Word] | None
    body: Sequence


@dataclass(slots=True)
class Case:
    word: Word
    branches: list[tuple[list[Word], Sequence]]


@dataclass(slots=True)
class Function:
    name: str
    body: "Command"


@dataclass(slots=True)
class Redirected:
    """A compound command with redirections after it."""

    command: "Command"
    redirects: list[Redirect]


Command = Simple | Sequence | Pipeline | Both | Group | If | While | For | Case | Function | Redirected

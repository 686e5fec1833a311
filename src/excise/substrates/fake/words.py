"""The words of a script: quotes, parameters, substitutions, arithmetic."""

import re
from typing import NoReturn

from excise.substrates.fake.script import Arithmetic, Parameter, Part, Sequence, Substitution, Text, Word

WORD_END = frozenset(" \t\n;&|()<>")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANY_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d+|[?!$#@*-]")
_PARAMETER_OPERATOR = re.compile(r":[-=+?]|[-=+?]|%%|%|##|#")


class BadSyntax(Exception):  # noqa: N818 - a shell's own word for it
    """The script is not shell."""


class Words:
    """Reads words off a text; `at` is where it stands. What stands in `$(...)` is for who reads commands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def sequence(self) -> Sequence:
        """The commands up to the next `)`."""
        raise NotImplementedError

    def fail(self) -> NoReturn:
        what = self.text[self.at : self.at + 1]
        raise BadSyntax(f'Syntax error: "{what}" unexpected' if what else "Syntax error: end of file unexpected")

    # ---- small steps

    def next(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def take(self, token: str) -> bool:
        if self.next(token):
            self.at += len(token)
            return True
        return False

    def blank(self) -> None:
        """Skip blanks, continued lines and comments."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self.next("\\\n"):
                self.at += 2
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def word(self, ends: frozenset[str] = WORD_END) -> Word:
        parts: list[Part] = []
        start = self.at
        while self.at < len(self.text) and (c := self.text[self.at]) not in ends:
            self.at += 1
            match c:
                case "'":
                    end = self.text.find("'", self.at)
                    if end < 0:
                        raise BadSyntax("Syntax error: Unterminated quoted string")
                    parts.append(Text(self.text[self.at : end], quoted=True))
                    self.at = end + 1
                case '"':
                    parts.extend(self.quoted('"') or (Text("", quoted=True),))
                case "\\":
                    if not self.take("\n"):
                        parts.append(Text(self.text[self.at : self.at + 1], quoted=True))
                        self.at += 1
                case "$":
                    parts.append(self._dollar(quoted=False))
                case "`":
                    parts.append(self._backtick(quoted=False))
                case _:
                    parts.append(Text(c))
        if not parts and self.at > start:
            parts.append(Text("", quoted=True))
        return tuple(parts)

    def quoted(self, end: str | None) -> Word:
        """What stands between double quotes, or all there is."""
        parts: list[Part] = []
        while self.at < len(self.text):
            c = self.text[self.at]
            self.at += 1
            if c == end:
                return tuple(parts)
            if c == "\\" and self.text[self.at : self.at + 1] in ("$", "`", '"', "\\", "\n"):
                if not self.take("\n"):
                    parts.append(Text(self.text[self.at], quoted=True))
                    self.at += 1
            elif c == "$":
                parts.append(self._dollar(quoted=True))
            elif c == "`":
                parts.append(self._backtick(quoted=True))
            else:
                parts.append(Text(c, quoted=True))
        if end is not None:
            raise BadSyntax("Syntax error: Unterminated quoted string")
        return tuple(parts)

    def _dollar(self, *, quoted: bool) -> Part:
        if self.take("(("):
            return self._arithmetic(quoted=quoted)
        if self.take("("):
            script = self.sequence()
            if not self.take(")"):
                self.fail()
            return Substitution(script, quoted)
        if self.take("{"):
            return self._braced(quoted=quoted)
        name = NAME.match(self.text, self.at)
        if name:
            self.at = name.end()
            return Parameter(name[0], quoted)
        special = self.text[self.at : self.at + 1]
        if special and special in "?!$#@*-0123456789":
            self.at += 1
            return Parameter(special, quoted)
        return Text("$", quoted)

    def _arithmetic(self, *, quoted: bool) -> Part:
        depth, start = 0, self.at
        while not (depth == 0 and self.next("))")):
            if self.at >= len(self.text):
                self.fail()
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.at += 1
        expression = type(self)(self.text[start : self.at]).quoted(None)
        self.at += 2
        return Arithmetic(expression, quoted)

    def _braced(self, *, quoted: bool) -> Part:
        length = self.next("#") and not self.next("#}")
        self.at += length
        name = _ANY_NAME.match(self.text, self.at) or self.fail()
        self.at = name.end()
        operator = "length" if length else ""
        word: Word = ()
        if found := _PARAMETER_OPERATOR.match(self.text, self.at):
            self.at = found.end()
            operator = found[0]
            word = self.word(frozenset("}"))
        if not self.take("}"):
            raise BadSyntax("Bad substitution")
        return Parameter(name[0], quoted, operator, word)

    def _backtick(self, *, quoted: bool) -> Part:
        end = self.text.find("`", self.at)
        if end < 0:
            raise BadSyntax("Syntax error: EOF in backquote substitution")
        inner = self.text[self.at : end]
        self.at = end + 1
        return Substitution(type(self)(inner).sequence(), quoted)

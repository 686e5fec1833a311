"""The grammar of the pretend shell: text in, a tree out. A subset of POSIX sh, enough for the scripts rollouts begin with."""

import re
from typing import NoReturn

from excise.substrates.fake.script import (
    Arithmetic,
    Both,
    Case,
    Command,
    For,
    Function,
    Group,
    If,
    Parameter,
    Part,
    Pipeline,
    Redirect,
    Redirected,
    Sequence,
    Simple,
    Substitution,
    Text,
    While,
    Word,
)

_RESERVED_ENDS = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}"})
_WORD_END = frozenset(" \t\n;&|()<>")
_REDIRECT = re.compile(r"(\d*)(<<-?|<&|>&|>>|<>|>\||<|>)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FUNCTION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*\([ \t]*\)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_KEYWORD = re.compile(r"[a-z!{}]+(?=[\s;&|()<>]|$)")
_PARAMETER_OPERATOR = re.compile(r":[-=+?]|[-=+?]|%%|%|##|#")


class BadSyntax(Exception):  # noqa: N818 - a shell's own word for it
    """The script is not shell."""


def parse(text: str) -> Sequence:
    """The tree of a whole script, or BadSyntax."""
    parser = _Parser(text)
    script = parser.sequence()
    if parser.at < len(text):
        parser.fail()
    return script


class _Parser:
    """Recursive descent over the characters; `at` is where it stands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._documents: list[tuple[Redirect, str, bool, bool]] = []

    def fail(self) -> NoReturn:
        what = self.text[self.at : self.at + 1]
        raise BadSyntax(f'Syntax error: "{what}" unexpected' if what else "Syntax error: end of file unexpected")

    # ---- small steps

    def _next(self, token: str) -> bool:
        return self.text.startswith(token, self.at)

    def _take(self, token: str) -> bool:
        if self._next(token):
            self.at += len(token)
            return True
        return False

    def _blank(self) -> None:
        """Skip blanks, continued lines and comments."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self._next("\\\n"):
                self.at += 2
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _newlines(self) -> None:
        self._blank()
        while self._take("\n"):
            self._read_documents()
            self._blank()

    def _keyword(self) -> str:
        match = _KEYWORD.match(self.text, self.at)
        return match[0] if match else ""

    def _expect(self, keyword: str) -> None:
        self._newlines()
        if self._keyword() != keyword:
            self.fail()
        self.at += len(keyword)

    # ---- lists and pipelines

    def sequence(self) -> Sequence:
        made = Sequence()
        while True:
            self._newlines()
            if self.at >= len(self.text) or self._next(")") or self._next(";;") or self._keyword() in _RESERVED_ENDS:
                return made
            command = self._and_or()
            self._blank()
            background = self._next("&")
            if background or (self._next(";") and not self._next(";;")):
                self.at += 1
            made.items.append((command, background))
            if not background and self.text[self.at - 1] != ";" and not self._next("\n"):
                self._blank()
                return made

    def _and_or(self) -> Command:
        left = self._pipeline()
        while True:
            self._blank()
            operator = self.text[self.at : self.at + 2]
            if operator not in ("&&", "||"):
                return left
            self.at += 2
            self._newlines()
            left = Both(left, operator, self._pipeline())

    def _pipeline(self) -> Command:
        negated = self._keyword() == "!"
        if negated:
            self.at += 1
            self._blank()
        commands = [self._command()]
        while True:
            self._blank()
            if not self._next("|") or self._next("||"):
                break
            self.at += 1
            self._newlines()
            commands.append(self._command())
        return commands[0] if len(commands) == 1 and not negated else Pipeline(commands, negated)

    # ---- commands

    def _command(self) -> Command:
        keyword = self._keyword()
        match keyword:
            case "{" | "if" | "while" | "until" | "for" | "case":
                self.at += len(keyword)
                made = self._compound(keyword)
            case _ if self._take("("):
                made = Group(self.sequence(), subshell=True)
                if not self._take(")"):
                    self.fail()
            case _ if found := _FUNCTION.match(self.text, self.at):
                self.at = found.end()
                self._newlines()
                return Function(found[1], self._command())
            case _:
                return self._simple()
        redirects = self._redirects()
        return Redirected(made, redirects) if redirects else made

    def _compound(self, keyword: str) -> Command:
        match keyword:
            case "{":
                body = self.sequence()
                self._expect("}")
                return Group(body, subshell=False)
            case "if":
                return self._if()
            case "for":
                return self._for()
            case "case":
                return self._case()
            case _:
                condition = self.sequence()
                return While(condition, self._do(), keyword == "until")

    def _do(self) -> Sequence:
        self._expect("do")
        body = self.sequence()
        self._expect("done")
        return body

    def _if(self) -> If:
        condition = self.sequence()
        self._expect("then")
        then = self.sequence()
        self._newlines()
        keyword = self._keyword()
        self.at += len(keyword)
        match keyword:
            case "elif":
                return If(condition, then, self._if())
            case "else":
                otherwise = self.sequence()
                self._expect("fi")
                return If(condition, then, otherwise)
            case "fi":
                return If(condition, then, None)
            case _:
                return self.fail()

    def _for(self) -> For:
        self._blank()
        name = _NAME.match(self.text, self.at) or self.fail()
        self.at = name.end()
        self._newlines()
        words: list[Word] | None = None
        if self._keyword() == "in":
            self.at += 2
            words = []
            self._blank()
            while self.at < len(self.text) and self.text[self.at] not in ";\n":
                words.append(self._word())
                self._blank()
        self._take(";")
        return For(name[0], words, self._do())

    def _case(self) -> Case:
        self._blank()
        word = self._word()
        self._expect("in")
        branches: list[tuple[list[Word], Sequence]] = []
        self._newlines()
        while self._keyword() != "esac":
            self._take("(")
            self._blank()
            patterns = [self._word()]
            self._blank()
            while self._take("|"):
                self._blank()
                patterns.append(self._word())
                self._blank()
            if not self._take(")"):
                self.fail()
            branches.append((patterns, self.sequence()))
            self._take(";;")
            self._newlines()
        self.at += len("esac")
        return Case(word, branches)

    def _simple(self) -> Simple:
        made = Simple()
        while True:
            self._blank()
            if redirect := self._redirect():
                made.redirects.append(redirect)
            elif self.at >= len(self.text) or self.text[self.at] in _WORD_END:
                if not (made.words or made.assignments or made.redirects):
                    self.fail()
                return made
            elif not made.words and (found := _ASSIGNMENT.match(self.text, self.at)):
                self.at = found.end()
                made.assignments.append((found[1], self._word()))
            else:
                made.words.append(self._word())

    def _redirects(self) -> list[Redirect]:
        made: list[Redirect] = []
        self._blank()
        while redirect := self._redirect():
            made.append(redirect)
            self._blank()
        return made

    def _redirect(self) -> Redirect | None:
        found = _REDIRECT.match(self.text, self.at)
        if not found:
            return None
        self.at = found.end()
        self._blank()
        operator = found[2]
        start = self.at
        word = self._word()
        if not word:
            self.fail()
        made = Redirect(int(found[1]) if found[1] else 0 if operator[0] == "<" else 1, operator[:2], word)
        if operator.startswith("<<"):
            delimiter = "".join(part.text for part in word if isinstance(part, Text))
            expands = not any(mark in self.text[start : self.at] for mark in "'\"\\")
            self._documents.append((made, delimiter, operator == "<<-", expands))
        return made

    def _read_documents(self) -> None:
        """The bodies of `<<` redirections, after the line that asked for them."""
        pending, self._documents = self._documents, []
        for redirect, delimiter, strips, expands in pending:
            lines: list[str] = []
            while self.at < len(self.text):
                line, newline, _ = self.text[self.at :].partition("\n")
                self.at += len(line) + len(newline)
                line = line.lstrip("\t") if strips else line
                if line == delimiter:
                    break
                lines.append(line + "\n")
            body = "".join(lines)
            redirect.word = _Parser(body)._quoted(None) if expands else (Text(body, quoted=True),)

    # ---- words

    def _word(self, ends: frozenset[str] = _WORD_END) -> Word:
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
                    parts.extend(self._quoted('"') or (Text("", quoted=True),))
                case "\\":
                    if not self._take("\n"):
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

    def _quoted(self, end: str | None) -> Word:
        """What stands between double quotes, or all there is."""
        parts: list[Part] = []
        while self.at < len(self.text):
            c = self.text[self.at]
            self.at += 1
            if c == end:
                return tuple(parts)
            if c == "\\" and self.text[self.at : self.at + 1] in ("$", "`", '"', "\\", "\n"):
                if not self._take("\n"):
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
        if self._take("(("):
            return self._arithmetic(quoted=quoted)
        if self._take("("):
            script = self.sequence()
            if not self._take(")"):
                self.fail()
            return Substitution(script, quoted)
        if self._take("{"):
            return self._braced(quoted=quoted)
        name = _NAME.match(self.text, self.at)
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
        while not (depth == 0 and self._next("))")):
            if self.at >= len(self.text):
                self.fail()
            depth += {"(": 1, ")": -1}.get(self.text[self.at], 0)
            self.at += 1
        expression = _Parser(self.text[start : self.at])._quoted(None)
        self.at += 2
        return Arithmetic(expression, quoted)

    def _braced(self, *, quoted: bool) -> Part:
        length = self._next("#") and not self._next("#}")
        self.at += length
        name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|\d+|[?!$#@*-]").match(self.text, self.at) or self.fail()
        self.at = name.end()
        operator = "length" if length else ""
        word: Word = ()
        if found := _PARAMETER_OPERATOR.match(self.text, self.at):
            self.at = found.end()
            operator = found[0]
            word = self._word(frozenset("}"))
        if not self._take("}"):
            raise BadSyntax("Bad substitution")
        return Parameter(name[0], quoted, operator, word)

    def _backtick(self, *, quoted: bool) -> Part:
        end = self.text.find("`", self.at)
        if end < 0:
            raise BadSyntax("Syntax error: EOF in backquote substitution")
        inner = self.text[self.at : end]
        self.at = end + 1
        return Substitution(parse(inner), quoted)

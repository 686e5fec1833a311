"""The grammar of the pretend shell: text in, a tree out. A subset of POSIX sh, enough for the scripts rollouts begin with."""

import re

from excise.substrates.fake.script import (
    Both,
    Case,
    Command,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Redirect,
    Redirected,
    Sequence,
    Simple,
    Text,
    While,
    Word,
)
from excise.substrates.fake.words import NAME, WORD_END, BadSyntax, Words

__all__ = ["BadSyntax", "parse"]

_RESERVED_ENDS = frozenset({"then", "else", "elif", "fi", "do", "done", "esac", "}"})
_REDIRECT = re.compile(r"(\d*)(<<-?|<&|>&|>>|<>|>\||<|>)")
_FUNCTION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[ \t]*\([ \t]*\)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_KEYWORD = re.compile(r"[a-z!{}]+(?=[\s;&|()<>]|$)")


def parse(text: str) -> Sequence:
    """The tree of a whole script, or BadSyntax."""
    parser = _Parser(text)
    script = parser.sequence()
    if parser.at < len(text):
        parser.fail()
    return script


class _Parser(Words):
    """Recursive descent over the characters: commands here, words in its base."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._documents: list[tuple[Redirect, str, bool, bool]] = []

    def _newlines(self) -> None:
        self.blank()
        while self.take("\n"):
            self._read_documents()
            self.blank()

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
            if self.at >= len(self.text) or self.next(")") or self.next(";;") or self._keyword() in _RESERVED_ENDS:
                return made
            command = self._and_or()
            self.blank()
            background = self.next("&")
            if background or (self.next(";") and not self.next(";;")):
                self.at += 1
            made.items.append((command, background))
            if not background and self.text[self.at - 1] != ";" and not self.next("\n"):
                self.blank()
                return made

    def _and_or(self) -> Command:
        left = self._pipeline()
        while True:
            self.blank()
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
            self.blank()
        commands = [self._command()]
        while True:
            self.blank()
            if not self.next("|") or self.next("||"):
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
            case _ if self.take("("):
                made = Group(self.sequence(), subshell=True)
                if not self.take(")"):
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
        self.blank()
        name = NAME.match(self.text, self.at) or self.fail()
        self.at = name.end()
        self._newlines()
        words: list[Word] | None = None
        if self._keyword() == "in":
            self.at += 2
            words = []
            self.blank()
            while self.at < len(self.text) and self.text[self.at] not in ";\n":
                words.append(self.word())
                self.blank()
        self.take(";")
        return For(name[0], words, self._do())

    def _case(self) -> Case:
        self.blank()
        word = self.word()
        self._expect("in")
        branches: list[tuple[list[Word], Sequence]] = []
        self._newlines()
        while self._keyword() != "esac":
            self.take("(")
            self.blank()
            patterns = [self.word()]
            self.blank()
            while self.take("|"):
                self.blank()
                patterns.append(self.word())
                self.blank()
            if not self.take(")"):
                self.fail()
            branches.append((patterns, self.sequence()))
            self.take(";;")
            self._newlines()
        self.at += len("esac")
        return Case(word, branches)

    def _simple(self) -> Simple:
        made = Simple()
        while True:
            self.blank()
            if redirect := self._redirect():
                made.redirects.append(redirect)
            elif self.at >= len(self.text) or self.text[self.at] in WORD_END:
                if not (made.words or made.assignments or made.redirects):
                    self.fail()
                return made
            elif not made.words and (found := _ASSIGNMENT.match(self.text, self.at)):
                self.at = found.end()
                made.assignments.append((found[1], self.word()))
            else:
                made.words.append(self.word())

    def _redirects(self) -> list[Redirect]:
        made: list[Redirect] = []
        self.blank()
        while redirect := self._redirect():
            made.append(redirect)
            self.blank()
        return made

    def _redirect(self) -> Redirect | None:
        found = _REDIRECT.match(self.text, self.at)
        if not found:
            return None
        self.at = found.end()
        self.blank()
        operator = found[2]
        start = self.at
        word = self.word()
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
            redirect.word = _Parser(body).quoted(None) if expands else (Text(body, quoted=True),)

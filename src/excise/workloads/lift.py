"""Take a function out of one version of a source file and put it into another, by the file's syntax tree."""

import ast
import difflib

from excise.errors import SpecError


def replace_function(text: str, other: str, name: str) -> str:
    """`text` with its function `name` as it is in `other`. A name may be dotted: a class's method."""
    lines, lifted = text.splitlines(keepends=True), _lines(other, name)
    first, last = _place(text, name)
    return "".join((*lines[:first], *lifted, *lines[last:]))


def add_method(text: str, other: str, name: str) -> str:
    """`text` with the method `name` (Class.method) of `other` at the end of its class."""
    lines = text.splitlines(keepends=True)
    _, end = _place(text, name.rpartition(".")[0])
    return "".join((*lines[:end], "\n", *_lines(other, name), *lines[end:]))


def patch(path: str, before: str, after: str) -> bytes:
    """What leads from one text to the other, as `git apply` reads it; the same bytes on every machine."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}", n=3
    )
    return "".join(lines).encode()


def _lines(text: str, name: str) -> list[str]:
    first, last = _place(text, name)
    return text.splitlines(keepends=True)[first:last]


def _place(text: str, name: str) -> tuple[int, int]:
    """The lines of a definition, its decorators included: from, and up to but not with."""
    inside: list[ast.stmt] = ast.parse(text).body
    node: ast.FunctionDef | ast.ClassDef | None = None
    for part in name.split("."):
        found = [one for one in inside if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name == part]
        if len(found) != 1:
            raise SpecError(f"the source has {len(found)} definitions of {name}, not one: it is another version")
        node, inside = found[0], found[0].body
    assert node is not None
    assert node.end_lineno is not None
    return min(node.lineno, *(one.lineno for one in node.decorator_list), node.lineno) - 1, node.end_lineno

"""What an agent does to the seed repository, one function a command: the action, and the answer it must give.

Every command prints a nonce after its own output and keeps its exit code; paths are relative to the sandbox's working
directory, and no command leaves it, so that the same text runs in a fresh shell and in one that persists.
"""

import shlex
from collections.abc import Callable
from typing import Literal

from excise.action import Read, Shell, Write
from excise.workloads.answers import ANSWERS
from excise.workloads.seed import DIRECTORY, Recipe
from excise.workloads.workload import Expect, Turn

TIMEOUT_S = 300.0
Runner = Literal["pytest", "conftest", "plain"]
Command = Callable[[Recipe, str], Turn]
"""Of a recipe and a word that is used once."""

_SEARCH = """\
import ast, pathlib
for path in sorted(pathlib.Path("src").rglob("*.py")):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            print(path, node.lineno, node.name, len(node.args.args))
"""
_PLAIN_RUNNER = """\
import ast, sys, traceback
path, name = sys.argv[1:]
group, _, test = name.partition(".")
kept = []
for node in ast.parse(open(path).read()).body:
    modules = [one.name for one in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""]
    if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
        if not {one.partition(".")[0] for one in modules} & {"pytest", "hypothesis"}:
            kept.append(node)
    if isinstance(node, ast.ClassDef) and node.name == group:
        node.body = [one for one in node.body if getattr(one, "name", "") == test]
        node.body[0].decorator_list = []
        kept.append(node)
space = {"__name__": "tests"}
exec(compile(ast.Module(kept, []), path, "exec"), space)
try:
    getattr(space[group](), test)()
except AssertionError:
    traceback.print_exc()
    print("1 failed")
    sys.exit(1)
print("1 passed")
"""


def shell(script: str, word: str, expect: Expect) -> Turn:
    """`script` in a shell of its own, then the word; the exit code is the script's."""
    wrapped = f"(\n{script}\n)\ncode=$?\necho {word}\n(exit $code)"
    return Turn(Shell(wrapped, timeout_s=TIMEOUT_S), _with_tail(expect, word))


def _with_tail(expect: Expect, word: str) -> Expect:
    return Expect(exit_code=expect.exit_code, sha256=expect.sha256, pattern=expect.pattern, tail=f"{word}\n".encode())


def _asked(name: str, script: str) -> Command:
    """A command whose output is known beforehand, as a digest."""

    def turn(recipe: Recipe, word: str) -> Turn:
        filled = script.format(at=DIRECTORY, source=recipe.source, function=recipe.function, tests=recipe.test_file)
        return shell(filled, word, Expect(sha256=ANSWERS[recipe.name][name]))

    return turn


def _python(program: str, *arguments: str) -> str:
    return f"cd {DIRECTORY} && python3 - {shlex.join(arguments)} <<'END'\n{program}END"


# ---- filesystem inspection


def search(recipe: Recipe, word: str) -> Turn:
    """By syntax tree: every decorated function of the sources."""
    return shell(_python(_SEARCH), word, Expect(sha256=ANSWERS[recipe.name]["search"]))


def read_source(recipe: Recipe, word: str) -> Turn:
    """As a file action. It can hold no nonce: what is read is the repository's."""
    del word
    return Turn(Read(f"{DIRECTORY}/{recipe.source}"), Expect(sha256=ANSWERS[recipe.name]["read"]))


ls = _asked("ls", "ls {at} {at}/src/attr")
log = _asked("log", "git -C {at} log --format='%H %an %ad %s' --date=iso")
grep = _asked("grep", "git -C {at} grep -n {function} -- src tests")
sed = _asked("sed", "sed -n '40,120p' {at}/{source}")
cat = _asked("cat", "cat {at}/src/attr/_config.py {at}/src/attr/exceptions.py")
find = _asked("find", "find {at}/src -name '*.py*' | sort")
count = _asked("count", "cat {at}/src/attr/*.py | wc -l")
show = _asked("show", "git -C {at} show --format=%H --name-only HEAD")
INSPECT: tuple[Command, ...] = (ls, log, grep, sed, search, cat, find, read_source, count, show)

# ---- command execution

head = _asked("head", "git -C {at} rev-parse HEAD && git -C {at} status --porcelain -- src tests")
imports = _asked("imports", "grep -h -r '^import' {at}/src --include='*.py' | sort -u")
names = _asked("names", "PYTHONPATH={at}/src python3 -c 'import attr; print(len(attr.__all__), attr.__all__[0])'")
digest = _asked("digest", "sha256sum {at}/{source} {at}/{tests}")
EXECUTE: tuple[Command, ...] = (head, imports, names, digest)

# ---- source modification


def write_module(recipe: Recipe, word: str) -> Turn:
    """A new source file, as a file action."""
    del recipe
    return Turn(Write(f"{DIRECTORY}/bench/note_{word.replace('-', '_')}.py", f'NOTE = "{word}"\n'.encode()))


def edit_line(recipe: Recipe, word: str) -> Turn:
    """One line of a file in place, shown afterwards."""
    del recipe
    script = f"sed -i '1s/.*/# {word}/' {DIRECTORY}/README.md && head -n 1 {DIRECTORY}/README.md"
    return shell(script, word, Expect(pattern=f"\\A# {word}$"))


def heredoc(recipe: Recipe, word: str) -> Turn:
    """A file from a shell's here-document, as agents without a file tool write."""
    del recipe
    path = f"{DIRECTORY}/bench/note.py"
    lines = ("import attr", "", "", "@attr.define", "class Note:", f"    text: str = '{word}'")
    script = "\n".join((f"cat > {path} <<'END'", *lines, "END", f"grep -c {word} {path}"))
    return shell(script, word, Expect(pattern="\\A1$"))


MODIFY: tuple[Command, ...] = (write_module, edit_line, heredoc)


def write_patch(patch: bytes, word: str) -> Turn:
    return Turn(Write(_patch_file(word), patch))


def apply_patch(recipe: Recipe, word: str, written: str) -> Turn:
    """The patch that was written under the word `written`."""
    script = f"git -C {DIRECTORY} apply ../{_patch_file(written)} && sha256sum {DIRECTORY}/{recipe.source}"
    return shell(script, word, Expect(sha256=ANSWERS[recipe.name]["fixed"]))


def _patch_file(word: str) -> str:
    return f"fix-{word}.patch"


# ---- test execution


def run_test(recipe: Recipe, word: str, runner: Runner, *, passes: bool) -> Turn:
    """The one test: with pytest, with pytest and the project's conftest (which needs hypothesis), or with Python alone."""
    outcome = "passed" if passes else "failed"
    expect = Expect(exit_code=0 if passes else 1, pattern=f"^{1 if runner == 'plain' else recipe.tests} {outcome}\\b")
    if runner == "plain":
        return shell(f"export PYTHONPATH=src; {_python(_PLAIN_RUNNER, recipe.test_file, recipe.test)}", word, expect)
    name = f"{recipe.test_file}::{recipe.test.replace('.', '::')}"
    options = "-q -p no:cacheprovider" + ("" if runner == "conftest" else " --noconftest")
    return shell(f"cd {DIRECTORY} && PYTHONPATH=src python3 -m pytest {options} {name}", word, expect)


# ---- the repository itself


def clone(recipe: Recipe, word: str, address: str) -> Turn:
    """At the buggy commit, from a bundle or a server."""
    return shell(
        f"{clone_script(recipe, address)} && git -C {DIRECTORY} rev-parse HEAD", word, Expect(pattern=f"\\A{recipe.head}$")
    )


def clone_script(recipe: Recipe, address: str) -> str:
    return f"git clone -q {address} {DIRECTORY} && git -C {DIRECTORY} checkout -q --detach {recipe.head}"

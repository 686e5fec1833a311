"""What an agent does to the seed repository, one function a command: the action, and the answer it must give.

Every command prints a nonce after its own output and keeps its exit code. It runs in a subshell that goes to the repository
by itself, so that the same text runs in a fresh shell and in one that persists.
"""

import shlex
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from excise.action import Read, Shell, Write
from excise.workloads.answers import ANSWERS
from excise.workloads.seed import Recipe
from excise.workloads.workload import Expect, Turn

TIMEOUT_S = 300.0
Runner = Literal["pytest", "conftest", "plain"]


class Site(NamedTuple):
    """Which repository, and the directory it lies in: "." where it is the working directory itself."""

    recipe: Recipe
    at: str

    def path(self, name: str) -> str:
        """A file of the repository, from the working directory."""
        return name if self.at == "." else f"{self.at}/{name}"

    def answer(self, command: str) -> Expect:
        """An output that is known beforehand, as a digest."""
        return Expect(sha256=ANSWERS[self.recipe.name][command])


Command = Callable[[Site, str], Turn]
"""On a site, with a word that is used once."""

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


def shell(site: Site, script: str, word: str, expect: Expect) -> Turn:
    """`script` in the repository, then the word; the exit code is the script's."""
    return _subshell(f"cd {site.at} && {script}", word, expect)


def _subshell(script: str, word: str, expect: Expect) -> Turn:
    wrapped = f"(\n{script}\n)\ncode=$?\necho {word}\n(exit $code)"
    tail = f"{word}\n".encode()
    return Turn(Shell(wrapped, timeout_s=TIMEOUT_S), msgspec.structs.replace(expect, tail=tail))


def _asked(name: str, script: str) -> Command:
    """A command whose output is the same everywhere."""

    def turn(site: Site, word: str) -> Turn:
        recipe = site.recipe
        filled = script.format(source=recipe.source, function=recipe.function, tests=recipe.test_file)
        return shell(site, filled, word, site.answer(name))

    return turn


def _python(program: str, *arguments: str) -> str:
    return f"python3 - {shlex.join(arguments)} <<'END'\n{program}END"


# ---- filesystem inspection


def search(site: Site, word: str) -> Turn:
    """By syntax tree: every decorated function of the sources."""
    return shell(site, _python(_SEARCH), word, site.answer("search"))


def read_source(site: Site, word: str) -> Turn:
    """As a file action. It can hold no nonce: what is read is the repository's."""
    del word
    return Turn(Read(site.path(site.recipe.source)), site.answer("read"))


ls = _asked("ls", "ls . src/attr")
log = _asked("log", "git log --format='%H %an %ad %s' --date=iso")
grep = _asked("grep", "git grep -n {function} -- src tests")
sed = _asked("sed", "sed -n '40,120p' {source}")
cat = _asked("cat", "cat src/attr/_config.py src/attr/exceptions.py")
find = _asked("find", "find src -name '*.py*' | sort")
count = _asked("count", "cat src/attr/*.py | wc -l")
show = _asked("show", "git show --format=%H --name-only HEAD")
INSPECT: tuple[Command, ...] = (ls, log, grep, sed, search, cat, find, read_source, count, show)

# ---- command execution

head = _asked("head", "git rev-parse HEAD && git status --porcelain -- src tests")
imports = _asked("imports", "grep -h -r '^import' src --include='*.py' | sort -u")
names = _asked("names", "PYTHONPATH=src python3 -c 'import attr; print(len(attr.__all__), attr.__all__[0])'")
digest = _asked("digest", "sha256sum {source} {tests}")
EXECUTE: tuple[Command, ...] = (head, imports, names, digest)

# ---- source modification; what is changed is nothing that an inspection shows


def write_module(site: Site, word: str) -> Turn:
    """A new source file, as a file action."""
    return Turn(Write(site.path(f"bench/note_{word.replace('-', '_')}.py"), f'NOTE = "{word}"\n'.encode()))


def edit_line(site: Site, word: str) -> Turn:
    """One line of a file in place, shown afterwards."""
    script = f"sed -i '1s/.*/# {word}/' README.md && head -n 1 README.md"
    return shell(site, script, word, Expect(pattern=f"\\A# {word}$"))


def heredoc(site: Site, word: str) -> Turn:
    """A file from a shell's here-document, as agents without a file tool write."""
    lines = ("import attr", "", "", "@attr.define", "class Note:", f"    text: str = '{word}'")
    script = "\n".join(("cat > bench/note.py <<'END'", *lines, "END", f"grep -c {word} bench/note.py"))
    return shell(site, script, word, Expect(pattern="\\A1$"))


MODIFY: tuple[Command, ...] = (write_module, edit_line, heredoc)


def write_patch(patch: bytes, word: str) -> Turn:
    return Turn(Write(_patch_file(word), patch))


def apply_patch(site: Site, word: str, written: str) -> Turn:
    """The patch that was written under the word `written`."""
    path = _patch_file(written) if site.at == "." else f"../{_patch_file(written)}"
    return shell(site, f"git apply {path} && sha256sum {site.recipe.source}", word, site.answer("fixed"))


def _patch_file(word: str) -> str:
    return f"fix-{word}.patch"


# ---- test execution


def run_test(site: Site, word: str, runner: Runner, *, passes: bool) -> Turn:
    """The one test: with pytest, with pytest and the project's conftest (which needs hypothesis), or with Python alone."""
    recipe, outcome = site.recipe, "passed" if passes else "failed"
    expect = Expect(exit_code=0 if passes else 1, pattern=f"^{1 if runner == 'plain' else recipe.tests} {outcome}\\b")
    if runner == "plain":
        return shell(site, f"PYTHONPATH=src {_python(_PLAIN_RUNNER, recipe.test_file, recipe.test)}", word, expect)
    name = f"{recipe.test_file}::{recipe.test.replace('.', '::')}"
    options = "-q -p no:cacheprovider" + ("" if runner == "conftest" else " --noconftest")
    return shell(site, f"PYTHONPATH=src python3 -m pytest {options} {name}", word, expect)


# ---- the repository itself


def clone(site: Site, word: str, address: str) -> Turn:
    """At the buggy commit, from a bundle or a server."""
    commit = site.recipe.head
    script = (
        f"git clone -q {address} {site.at} && git -C {site.at} checkout -q --detach {commit} && git -C {site.at} rev-parse HEAD"
    )
    return _subshell(script, word, Expect(pattern=f"\\A{commit}$"))


def checkout(site: Site, word: str) -> Turn:
    """What stands in for the clone where the repository is there already."""
    commit = site.recipe.head
    return shell(site, f"git checkout -q --detach {commit} && git rev-parse HEAD", word, Expect(pattern=f"\\A{commit}$"))


def preload(recipe: Recipe, bundle: str) -> str:
    """A script that makes the working directory the repository at its commit, out of a bundle that lies there."""
    return f"git init -q . && git fetch -q {bundle} main && git checkout -q --detach {recipe.head} && rm {bundle}"

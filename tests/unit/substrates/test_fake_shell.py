"""The pretend shell against the real one: the same script, the same output and exit code."""

import os
import subprocess
from pathlib import Path

import pytest

from excise.sandbox import Sandbox
from excise.substrates.fake import FakeSubstrate, virtual_time

SCRIPTS = (
    "echo one; echo two",
    "echo a && echo b || echo c",
    "false && echo b || echo c",
    "! true; echo $?",
    "echo 'single $x' \"double $x\" plain\\ space",
    "x='a  b'; echo $x; echo \"$x\"",
    "x=1; x=2 sh -c 'echo $x'; echo $x",
    "echo ${x:-default} ${x-unset}; x=; echo [${x:-empty}] [${x-null}] [${x:+set}]",
    ": ${x:=given}; echo $x",
    "x=path/to/file.tar.gz; echo ${x##*/} ${x#*/} ${x%.*} ${x%%.*} ${#x}",
    "echo $((1 + 2 * 3)) $(( (1 + 2) * 3 )) $((7 / 2)) $((7 % 2)) $((-7 / 2)) $((3 > 2)) $((1 && 0))",
    "i=0; while [ $i -lt 3 ]; do echo $i; i=$((i + 1)); done",
    "i=0; until [ $i -ge 3 ]; do i=$((i + 1)); if [ $i = 2 ]; then continue; fi; echo $i; done",
    "for i in a 'b c' d; do echo \"<$i>\"; done",
    "for i in 1 2 3; do for j in 1 2 3; do [ $j = 2 ] && break 2; echo $i$j; done; done",
    'set -- a \'b c\' d; for i; do echo "$i"; done; echo $# "$*"; shift; echo $1',
    'set -- a "b c"; printf "<%s>" "$@"; printf "<%s>" $@',
    "case abc in a*) echo starts;; *) echo other;; esac; case x in y|x) echo either;; esac",
    "if false; then echo 1; elif true; then echo 2; else echo 3; fi",
    "f() { echo got $1; return 4; }; f x; echo $?",
    "(cd /; pwd); x=1; (x=2; echo $x); echo $x",
    "{ echo out; echo err >&2; } 2>&1 | cat",
    "echo hidden >/dev/null; echo shown",
    "echo first > f; echo second >> f; cat f; cat < f",
    "cat <<END\nx is $((1+1))\nEND\ncat <<'END'\nraw $x\nEND",
    "echo $(echo nested $(echo deep)); echo `echo old`",
    "x=$(false); echo $?; x=$(exit 7); echo $?",
    "printf '%s-%d\\n' a 1 b 2; printf '\\101\\n'; printf '%05d|%-4s|%%\\n' 42 ab",
    "echo a b c | wc -w; seq 3 | tail -n 1; seq 5 | head -n 2; printf abcdef | head -c 3",
    "nosuchprogram; echo $?",
    "touch f; ./f; echo $?",
    "printf 'echo from script $1\\n' > s; chmod +x s; ./s arg; sh s arg",
    "set -e; false; echo not reached",
    "set -e; if false; then :; fi; false || true; echo reached",
    "trap 'echo bye' EXIT; echo hi",
    "trap 'echo got' USR1; kill -USR1 $$; echo after",
    "(exit 3); echo $?; exit 5",
    "sleep 0.01 & wait $!; echo $?; (exit 6) & wait $!; echo $?",
    "sh -c 'kill -9 $$'; echo $?",
    "mkdir -p d/e; touch d/e/x d/y; ls d; ls d/e; rm -r d; ls d 2>/dev/null; echo $?",
    "touch b.txt a.txt c.log; echo *.txt; echo '*.txt'; echo no*match",
    "ln -s target link; readlink link; test -L link && echo link; test -e link || echo dangling",
    "echo x > f; mv f g; cp g h; cat h; test -f f; echo $?",
    "test -n '' ; echo $?; test -z ''; echo $?; [ a = a ] && [ 1 -lt 2 ] && [ ! -e nofile ]; echo $?",
    'read a b <<END\none two three\nEND\necho "$a|$b"',
    "printf 'l1\\nl2\\n' | while read line; do echo \"<$line>\"; done",
    "echo to-3 3>&1 >&3; exec 4>kept; echo line >&4; exec 4>&-; cat kept",
    "env -i A=1 /usr/bin/env",
    "eval 'y=5'; echo $y; unset y; echo [$y]",
    "umask 077; touch private; test -r private && echo ok",
    "cd nowhere 2>/dev/null || echo no; cd /; pwd",
    "true | false; echo $?; false | true; echo $?",
    "yes | head -n 2",
    "echo one # a comment\necho two#not \\\n  joined",
    "if then",
    "echo 'open",
)


def real(script: str, tmp_path: Path) -> tuple[int, bytes]:
    env = {"PATH": os.environ["PATH"], "HOME": "/root"}
    done = subprocess.run(["sh", "-c", script], cwd=tmp_path, env=env, capture_output=True, check=False, timeout=20)
    return done.returncode, done.stdout


async def pretended(script: str) -> tuple[int | None, bytes]:
    async with Sandbox(FakeSubstrate()) as box:
        seen = await box.run(script, timeout_s=20)
        return seen.exit_code, seen.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_pretend_shell_does_what_a_real_one_does(script: str, tmp_path: Path) -> None:
    assert virtual_time.run(pretended(script)) == real(script, tmp_path)

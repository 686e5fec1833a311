"""A shell around each action, for engines that tell the end of a program late, or only when its pipes close.

The shell says where the program's output begins and ends, how it ended, and whether it left anything running. Its last
word carries a key that came on standard input and that the program never sees, so the program cannot write that word.
"""

import re
import secrets
from typing import Literal

import msgspec

MARKER = "EXCISE_ACTION"
"""The variable every process of an action inherits; `kill` finds them by it."""

SIGNALLED = 128
"""A shell's codes above it are signals'; below it a shell of ours ended by itself, and the wrapping one never does without its
last word."""

_SEPARATOR = b"\x1e"
_LONGEST_MARK_BYTES = 4096

# Every name is unset first: the caller's variable of the same name would be exported to the program with our value.
# INT, QUIT, TERM and HUP are for the program, which gets its own disposition back; the shell must live to speak last.
# The shell's own stderr is /dev/null, since some shells remark on a child's death by signal there.
# `exec` in a subshell, because a bare "$@" would prefer a builtin (echo, test, exit) to the program of that name.
# Nothing forks after the program has ended: at its limit of processes a sandbox could not, and would never say the end.
# The shell and its ancestors, who may have the action's mark, are not what it left running. What came after the shell has a
# higher number, unless the kernel has begun again: then the last number given is lower, and everybody but they is looked at.
# What the limits did is read before and after, in either generation of cgroups, if the sandbox has limits at all.
_COUNTS = r"""
excise_counts() {
    EXCISE_COUNTS=
    for EXCISE_WORD in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control \
        /sys/fs/cgroup/pids.events /sys/fs/cgroup/pids/pids.events; do
        [ -r "$EXCISE_WORD" ] || continue
        while read -r EXCISE_CODE EXCISE_LEFT; do
            case $EXCISE_WORD:$EXCISE_CODE in
            *memory*:oom_kill | *pids*:max) EXCISE_COUNTS="$EXCISE_COUNTS $EXCISE_CODE=$EXCISE_LEFT" ;;
            esac
        done <"$EXCISE_WORD"
    done
}
"""
_SCRIPT = rf"""
unset EXCISE_KEY EXCISE_WORD EXCISE_CODE EXCISE_LEFT EXCISE_STDIN EXCISE_STREAMS EXCISE_COUNTS EXCISE_LIMITED
IFS= read -r EXCISE_KEY || exit 125
trap : INT QUIT TERM HUP
EXCISE_STDIN=$2 EXCISE_STREAMS=$3 EXCISE_LIMITED=$4
{_COUNTS}
[ "$EXCISE_STREAMS" = apart ] || exec 2>&1
exec 3>&2 2>/dev/null
[ -z "$EXCISE_LIMITED" ] || excise_counts
IFS= read -r EXCISE_WORD </proc/$$/stat
printf '\036%s %s|%s\036' "$EXCISE_ACTION" "$EXCISE_WORD" "$EXCISE_COUNTS"
if [ -n "$1" ] && ! cd "$1"; then
    printf 'cannot enter the directory %s\n' "$1" >&3
    EXCISE_CODE=126
else
    shift 4
    case $EXCISE_STDIN in
    open) (exec "$@" 2>&3 3>&-) ;;
    closed) (exec "$@" </dev/null 2>&3 3>&-) ;;
    *) command -p head -c "$EXCISE_STDIN" 3>&- | (exec "$@" 2>&3 3>&-) ;;
    esac
    EXCISE_CODE=$?
fi
set -- "$EXCISE_CODE" 0
EXCISE_CODE=
read -r EXCISE_LEFT EXCISE_LEFT EXCISE_LEFT EXCISE_LEFT EXCISE_CODE </proc/loadavg
EXCISE_LEFT=
if [ "${{EXCISE_CODE:-0}}" -lt $$ ]; then
    EXCISE_WORD=$$ EXCISE_LEFT=" "
    while [ "${{EXCISE_WORD:-0}}" -gt 0 ]; do
        EXCISE_LEFT="$EXCISE_LEFT$EXCISE_WORD "
        IFS= read -r EXCISE_STDIN <"/proc/$EXCISE_WORD/stat" || break
        EXCISE_STDIN=${{EXCISE_STDIN##*) ? }}
        EXCISE_WORD=${{EXCISE_STDIN%% *}}
    done
fi
for EXCISE_WORD in /proc/[0-9]*; do
    EXCISE_CODE=${{EXCISE_WORD#/proc/}}
    case $EXCISE_LEFT in
    '') [ "$EXCISE_CODE" -gt $$ ] || continue ;;
    *" $EXCISE_CODE "*) continue ;;
    esac
    while IFS= read -r EXCISE_STDIN || [ -n "$EXCISE_STDIN" ]; do
        case $EXCISE_STDIN in *"EXCISE_ACTION=$EXCISE_ACTION"*) set -- "$1" 1; break 2 ;; esac
    done <"$EXCISE_WORD/environ"
done
[ -z "$EXCISE_LIMITED" ] || excise_counts
[ "$EXCISE_STREAMS" = apart ] && printf '\036%s\036' "$EXCISE_KEY" >&3
printf '\036%s %s %s|%s\036' "$EXCISE_KEY" "$1" "$2" "$EXCISE_COUNTS"
exit "$1"
"""

_INLINE = r"""
IFS= read -r EXCISE_KEY || exit 125
exec 2>&1
excise_inline() {{
{script}
}}
excise_inline "$@"
printf '\036%s %s 0|\036' "$EXCISE_KEY" $?
"""
COUNT = _COUNTS + 'excise_counts; printf %s "$EXCISE_COUNTS"'
"""A script for `inline` that prints what `Counts.parse` reads."""


class Counts(msgspec.Struct, frozen=True):
    """How often the sandbox's limits struck since it was made."""

    oom_kill: int = 0
    max: int = 0
    """Processes that could not be started."""

    @classmethod
    def parse(cls, text: bytes) -> "Counts":
        found = dict(re.findall(rb"(\w+)=(\d+)", text))
        return cls(int(found.get(b"oom_kill", 0)), int(found.get(b"max", 0)))


class Began(msgspec.Struct, frozen=True):
    """Which process the wrapping shell is, and when it started, in its kernel's ticks since boot."""

    pid: int
    start_ticks: int
    counts: Counts


class Ended(msgspec.Struct, frozen=True):
    """The program's exit code (128 + n after signal n), and whether any process of the action still runs."""

    exit_code: int
    still_running: bool
    counts: Counts


class Wrapped(msgspec.Struct, frozen=True):
    """A program with the shell around it: what to run, with which variable, and what to send on stdin first."""

    argv: tuple[str, ...]
    nonce: str
    key: str
    streams: Literal["apart", "one"]
    inline: bool = False

    @property
    def preamble(self) -> bytes:
        """Goes to stdin ahead of anything else."""
        return self.key.encode() + b"\n"


def wrap(
    argv: tuple[str, ...], *, cwd: str | None, stdin: Literal["open", "closed"] | int, apart: bool, limited: bool
) -> Wrapped:
    """`argv` in `cwd`, stdout and stderr `apart` or as one stream; `limited`: watch what the sandbox's limits do.

    Its stdin is what follows the preamble (`open`), nothing (`closed`), or the next so many bytes, for connections that
    cannot say an end of file.
    """
    streams = "apart" if apart else "one"
    script = ("sh", "-c", _SCRIPT, "sh", plain(cwd) if cwd else "", str(stdin), streams, "limited" if limited else "")
    return Wrapped((*script, *argv), _nonce(), _nonce(), streams)


def inline(script: str, *arguments: str) -> Wrapped:
    """A script of ours, run by the wrapping shell itself: no process but that one is started for it."""
    argv = ("sh", "-c", _INLINE.format(script=script), "sh", *arguments)
    return Wrapped(argv, "", _nonce(), "one", inline=True)


def plain(path: str) -> str:
    """`path` so that no program takes it for an option, nor cd for a word of its own."""
    return path if path.startswith("/") else f"./{path}"


def _nonce() -> str:
    return secrets.token_hex(16)


class Stream:
    """One output stream on its way out of the wrapper: takes the marks out, and remembers what they said."""

    def __init__(self, wrapped: Wrapped, name: Literal["stdout", "stderr"]) -> None:
        self._begin = _SEPARATOR + wrapped.nonce.encode()
        self._end = _SEPARATOR + wrapped.key.encode()
        self._held = b""
        self._open = wrapped.inline or name == "stderr"
        self.prologue = b""
        """What came before the program's own output: an engine's words, if the program never began."""
        self.began: Began | None = None
        self.ended: Ended | None = None
        self.done = name == "stderr" and wrapped.streams == "one"
        """Nothing more of this stream belongs to the action."""

    def feed(self, data: bytes) -> bytes:
        """The program's own bytes in `data`; what may yet turn out to be a mark is held back."""
        if self.done:
            return b""
        self._held += data
        if not self._open and not self._find_begin():
            return b""
        out, word = self._split(self._end)
        if word is not None:
            self.done = True
            self.ended = _ended(word)
        return out

    def rest(self) -> bytes:
        """What was held back, once it is known that nothing more will come."""
        rest, self._held = self._held, b""
        if not self._open:
            self.prologue += rest
            return b""
        return b"" if self.done else rest

    def _find_begin(self) -> bool:
        before, word = self._split(self._begin)
        self.prologue = (self.prologue + before)[-_LONGEST_MARK_BYTES:]
        if word is None:
            return False
        self.began = _began(word)
        self._open = True
        return True

    def _split(self, mark: bytes) -> tuple[bytes, bytes | None]:
        """What lies before `mark`, and the word it carries; the word is None as long as the mark is not there in full."""
        at = self._held.find(mark)
        if at >= 0:
            close = self._held.find(_SEPARATOR, at + len(mark))
            if close >= 0:
                out, word = self._held[:at], self._held[at + len(mark) : close]
                self._held = self._held[close + 1 :]
                return out, word
            keep = at if len(self._held) - at < _LONGEST_MARK_BYTES else len(self._held)
        else:
            keep = self._held.rfind(_SEPARATOR, max(0, len(self._held) - len(mark)))
            if keep < 0 or not mark.startswith(self._held[keep:]):
                keep = len(self._held)
        out, self._held = self._held[:keep], self._held[keep:]
        return out, None


def _began(word: bytes) -> Began | None:
    """From /proc/PID/stat, whose second field is a name in brackets that may hold anything."""
    status, _, counts = word.strip().rpartition(b"|")
    pid, _, rest = status.partition(b" ")
    fields = rest.rpartition(b") ")[2].split()
    return Began(int(pid), int(fields[19]), Counts.parse(counts)) if pid.isdigit() and len(fields) > 19 else None


def _ended(word: bytes) -> Ended | None:
    said = re.fullmatch(rb" (\d+) ([01])\|(.*)", word)
    return Ended(int(said[1]), said[2] == b"1", Counts.parse(said[3])) if said else None

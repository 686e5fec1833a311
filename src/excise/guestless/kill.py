"""End every process of one action, and no other, where nothing but an exec is there.

Every process of an action inherits the variable `EXCISE_ACTION=<nonce>`; a scan of /proc finds who carries it, and their
descendants. A program may clear its environment and detach: it is still found, as an orphan without any mark that started
after the action did, if no other action was in flight meanwhile. One that does so while another action runs, or that
takes another action's mark, cannot be told apart and lives on. That is a limit of having no guest.
"""

from collections.abc import Awaitable, Callable

import msgspec

from excise.action import KEEP_ALL, Exec, Observation
from excise.errors import SandboxLost

DEADLINE_S = 20.0
_BLIND = 3

# Only builtins: a sandbox at its limit of processes could start no grep.
# Stopped first, killed when a scan finds nobody new: a parent's death would orphan children not yet seen.
_SCAN = r"""
    excise_new=0 excise_alive=0
    for excise_dir in /proc/[0-9]*; do
        excise_pid=${excise_dir#/proc/} excise_line=
        [ "$excise_pid" = $$ ] && continue
        { while IFS= read -r excise_part; do excise_line="$excise_line $excise_part"; done <"$excise_dir/stat"; } 2>/dev/null
        set -- ${excise_line##*) }
        [ $# -gt 19 ] || continue
        case $1 in Z | X) continue ;; esac
        excise_parent=$2
        shift 19
        case " $excise_all " in *" $excise_pid "*) excise_alive=1; continue ;; esac
        [ "$1" -ge "$excise_since" ] || continue
        case " $excise_all " in
        *" $excise_parent "*) ;;
        *)
            excise_line=
            {
                while IFS= read -r excise_part || [ -n "$excise_part" ]; do excise_line="$excise_line$excise_part"; done \
                    <"$excise_dir/environ"
            } 2>/dev/null
            case $excise_line in
            *"EXCISE_ACTION=$excise_nonce"*) ;;
            *EXCISE_ACTION=*) continue ;;
            *) [ "$excise_alone" = 1 ] && [ "$excise_parent" = 1 ] || continue ;;
            esac
            ;;
        esac
        kill -STOP "$excise_pid" 2>/dev/null
        excise_all="$excise_all $excise_pid" excise_new=1 excise_alive=1
    done
"""
_KILL = rf"""
excise_nonce=$1 excise_since=$2 excise_alone=$3 excise_left=$4 excise_mode=$5 excise_all=$6 excise_line=
if [ "$excise_mode" = look ]; then
    {{
        while IFS= read -r excise_part || [ -n "$excise_part" ]; do excise_line="$excise_line$excise_part"; done \
            <"/proc/$6/environ"
    }} 2>/dev/null
    case $excise_line in *"EXCISE_ACTION=$excise_nonce"*) ;; *) return {_BLIND} ;; esac
    excise_all=
fi
while :; do
    read -r excise_now excise_part </proc/uptime
    excise_now=${{excise_now%.*}}
    : "${{excise_last:=$((excise_now + excise_left))}}"
    if [ "$excise_now" -gt "$excise_last" ]; then echo "still alive: $excise_all"; return 1; fi
    {_SCAN}
    [ $excise_new = 1 ] && continue
    if [ "$excise_mode" = stop ]; then echo "$excise_all"; return 0; fi
    [ $excise_alive = 0 ] && return 0
    kill -KILL $excise_all 2>/dev/null
done
"""

_SIGNAL = r"""
excise_wrapper=$1 excise_number=$2
for excise_dir in /proc/[0-9]*; do
    excise_line=
    { while IFS= read -r excise_part; do excise_line="$excise_line $excise_part"; done <"$excise_dir/stat"; } 2>/dev/null
    set -- ${excise_line##*) }
    [ "$2" = "$excise_wrapper" ] && kill -"$excise_number" "${excise_dir#/proc/}"
done
:
"""

Run = Callable[[Exec], Awaitable[Observation]]


class _Target(msgspec.Struct, frozen=True):
    nonce: str
    since_ticks: int
    alone: bool
    deadline_s: float

    def script(self, mode: str, given: str) -> Exec:
        alone = self.alone and self.since_ticks > 0
        arguments = (self.nonce, str(self.since_ticks), str(int(alone)), str(int(self.deadline_s)), mode, given)
        return _script(_KILL, *arguments, timeout_s=self.deadline_s + 10)


async def kill(
    run: Run,
    nonce: str,
    *,
    since_ticks: int = 0,
    alone: bool = False,
    wrapper_pid: int = 0,
    run_as_user: Run | None = None,
    deadline_s: float = DEADLINE_S,
) -> None:
    """Return when every process of the action `nonce` is dead; `run` should be root's where that can be.

    `since_ticks`: when the action's first process started, in ticks since boot; 0 if that is not known. `alone`: no other
    action was in flight since then. Even root may not be allowed to read another user's marks, which it finds out at
    `wrapper_pid`. Then `run_as_user`, which runs as the action did, looks for them, and `run` ends what it found with all
    that came of it.
    """
    target = _Target(nonce, since_ticks, alone, deadline_s)
    if run_as_user is None:
        seen = await run(target.script("kill", ""))
    else:
        seen = await run(target.script("look", str(wrapper_pid)))
        if seen.exit_code == _BLIND:
            found = await run_as_user(target.script("stop", ""))
            seeds = " ".join(word for word in found.stdout.decode().split() if word.isdigit())
            seen = await run(target.script("kill", f"{wrapper_pid} {seeds}"))
    if not seen.ok:
        raise SandboxLost(f"an action's processes could not be ended: {seen.text.strip() or 'no answer'}")


async def send(run: Run, wrapper_pid: int, number: int) -> None:
    """Send a signal to the program that the wrapping shell `wrapper_pid` waits for."""
    await run(_script(_SIGNAL, str(wrapper_pid), str(number), timeout_s=DEADLINE_S))


def _script(text: str, *arguments: str, timeout_s: float) -> Exec:
    # A function, so that `return` ends it both here and where the text is run by a shell that has more to do.
    whole = f'excise_do() {{\n{text}\n}}\nexcise_do "$@"'
    return Exec(("sh", "-c", whole, "sh", *arguments), timeout_s=timeout_s, keep=KEEP_ALL)

"""What a snapshot carries of sessions: each one's directory and exported variables, read at snapshot and given back."""

import asyncio
import re
import shlex
from collections.abc import Iterable, Mapping

from excise.action import KEEP_ALL, Shell
from excise.spec import Spec
from excise.substrate import Handle, SessionState

_READ = "command pwd -P; command printf '\\0'; command env -0"
_SHELLS_OWN = frozenset({"_", "PWD", "OLDPWD", "SHLVL"})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def kept(name: str, cwd: str, exported: Mapping[str, str], base: Mapping[str, str], spec: Spec) -> SessionState:
    """The state of the session `name`. `base`: what every action has.

    A variable that holds a secret, under whatever name, stays out: a snapshot is kept where a secret must not be.
    """
    secrets = [value for secret in spec.secrets.values() if (value := secret.reveal())]
    env = {
        key: value
        for key, value in exported.items()
        if key not in _SHELLS_OWN
        and _NAME.fullmatch(key)
        and base.get(key) != value
        and not any(secret in value for secret in secrets)
    }
    unset = tuple(sorted(key for key in base.keys() - exported.keys() - _SHELLS_OWN if _NAME.fullmatch(key)))
    return SessionState(name=name, cwd=cwd, env=env, unset=unset)


async def read_sessions(handle: Handle, names: Iterable[str], base: Mapping[str, str], spec: Spec) -> tuple[SessionState, ...]:
    """The states of these sessions. Each is asked when it is its turn: a command that runs in it is waited for."""
    found = await asyncio.gather(*(_read(handle, name, base, spec) for name in sorted(names)))
    return tuple(state for state in found if state is not None)


async def _read(handle: Handle, name: str, base: Mapping[str, str], spec: Spec) -> SessionState | None:
    seen = await handle.run(Shell(_READ, session=name, keep=KEEP_ALL))
    cwd, cut, variables = seen.stdout.partition(b"\n\0")
    if not seen.ok or not cut:
        return None  # its shell cannot say: no `env`, a directory that is gone. It begins anew.
    exported: dict[str, str] = {}
    for entry in variables.split(b"\0"):
        key, equals, value = entry.partition(b"=")
        try:
            if equals:
                exported[key.decode()] = value.decode()
        except UnicodeDecodeError:
            continue  # no text, so no record of ours can hold it
    try:
        return kept(name, cwd.decode(), exported, base, spec)
    except UnicodeDecodeError:
        return None


async def give_sessions(handle: Handle, states: Iterable[SessionState]) -> None:
    """Let the sessions of a new life begin where those of the snapshot stood."""
    await asyncio.gather(*(handle.run(Shell(_script(state), session=state.name)) for state in states))


def _script(state: SessionState) -> str:
    # Its directory may have been in /tmp, which no snapshot has: then it begins where every session does.
    lines = [f"cd -- {shlex.quote(state.cwd)} 2>/dev/null"]
    lines += [f"unset {name}" for name in state.unset]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in state.env.items()]
    return "\n".join(lines)

"""What is kept of a session, and what is left out of it."""

import subprocess
from pathlib import Path

from excise.session_state import _script, kept
from excise.spec import Secret, Spec
from excise.substrate import SessionState

BASE = {"PATH": "/bin", "HOME": "/root", "TOKEN": "s3cret"}
SPEC = Spec(secrets={"TOKEN": Secret("s3cret"), "EMPTY": Secret("")})


def test_only_what_differs_is_kept_and_what_was_taken_away_is_named() -> None:
    exported = {"PATH": "/venv/bin:/bin", "TOKEN": "s3cret", "NEW": "1", "PWD": "/w", "SHLVL": "2", "_": "x"}
    state = kept("main", "/w", exported, BASE, SPEC)
    assert state == SessionState(name="main", cwd="/w", env={"PATH": "/venv/bin:/bin", "NEW": "1"}, unset=("HOME",))


def test_a_secret_stays_out_under_every_name() -> None:
    exported = {**BASE, "COPY": "s3cret", "URL": "https://me:s3cret@host", "HARMLESS": "secret"}
    assert kept("main", "/", exported, BASE, SPEC).env == {"HARMLESS": "secret"}


def test_a_name_no_shell_can_set_stays_out() -> None:
    assert kept("main", "/", {**BASE, "BASH_FUNC_f%%": "() { :; }", "a-b": "1"}, BASE, SPEC).env == {}


def shown(state: SessionState, script: str) -> tuple[str, str]:
    """What a shell that was given this state prints."""
    done = subprocess.run(
        ["bash", "-c", f"{_script(state)}\n{script}"], cwd="/", capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout, done.stderr


def test_what_is_given_back_is_quoted(tmp_path: Path) -> None:
    place = tmp_path / "-a 'b"
    place.mkdir()
    state = SessionState(name="main", cwd=str(place), env={"A": "$(touch x); 'y'\nz"}, unset=("HOME",))
    printed = shown(state, 'pwd; sh -c \'echo "$A"\'; echo "[$HOME]"; ls')
    assert printed == (f"{place}\n$(touch x); 'y'\nz\n[]\n", "")


def test_a_directory_that_is_gone_is_no_obstacle() -> None:
    state = SessionState(name="main", cwd="/tmp/gone-with-the-snapshot", env={"A": "a"})
    assert shown(state, "pwd; echo $A") == ("/\na\n", "")

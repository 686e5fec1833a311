"""What is kept of a session, and what is left out of it."""

import asyncio

from excise.sandbox import Sandbox
from excise.session_state import _script, kept
from excise.spec import Secret, Spec
from excise.substrate import SessionState
from excise.substrates.fake import FakeSubstrate

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


def test_what_is_given_back_is_quoted() -> None:
    state = SessionState(name="main", cwd="/a 'b", env={"A": "$(touch x); 'y'\nz"}, unset=("HOME",))

    async def main() -> None:
        async with Sandbox(FakeSubstrate()) as box:
            await box.run('mkdir -p "/a \'b"')
            seen = await box.run(f'{_script(state)}\npwd; echo "$A"; echo [$HOME]; ls')
            assert seen.text == "/a 'b\n$(touch x); 'y'\nz\n[]\n"

    asyncio.run(main())

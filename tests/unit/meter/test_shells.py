# An attribute that is not there fails the test: that is what the test is for.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import pytest

from excise.action import Batch, Exec, Read, Shell
from excise.meter.records import SHELLS
from excise.meter.shells import in_mode

PROGRAM = Exec(("echo", "a b", "$HOME"), cwd="/tmp", env={"A": "1"}, timeout_s=5.0, stdin=b"x", merge=True)
SCRIPT = Shell("cd /; pwd", timeout_s=5.0)


def test_exec_leaves_every_action_as_the_workload_says():
    assert all(in_mode(one, "exec") is one for one in (PROGRAM, SCRIPT, Read("f"), Batch((PROGRAM,))))


def test_a_program_keeps_its_words_and_its_terms_in_a_shell():
    found = in_mode(PROGRAM, "shell")
    assert found == Shell("echo 'a b' '$HOME'", cwd="/tmp", env={"A": "1"}, timeout_s=5.0, stdin=b"x", merge=True)


def test_a_login_shell_is_a_program():
    assert in_mode(SCRIPT, "login") == Exec(("bash", "-lc", "cd /; pwd"), timeout_s=5.0)


def test_a_session_has_one_name():
    assert {in_mode(one, "session").session for one in (PROGRAM, SCRIPT)} == {"main"}


def test_a_session_of_the_workloads_own_stays_one_in_a_plain_shell():
    assert in_mode(Shell("x", session="mine"), "shell") == Shell("x", session="mine")


@pytest.mark.parametrize("mode", SHELLS)
def test_files_are_files_in_every_mode(mode):
    assert in_mode(Read("f"), mode) == Read("f")


def test_a_batch_is_changed_within():
    assert in_mode(Batch((SCRIPT, Read("f"))), "login") == Batch((in_mode(SCRIPT, "login"), Read("f")))

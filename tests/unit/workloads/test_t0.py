# A None where a number or a record is expected fails the test: that is what the test is for.
# pyright: reportAttributeAccessIssue=false

import pytest

from excise.action import End, Exec, Observation, Read, Shell, Write
from excise.errors import SpecError
from excise.workloads.registry import make
from excise.workloads.t0 import T0
from excise.workloads.workload import Expect


def test_ten_actions_of_four_kinds_in_turn():
    kinds = [type(turn.action) for turn in T0().turns("n")]
    assert kinds == [Exec, Shell, Write, Read, Exec, Shell, Write, Read, Exec, Shell]


def test_what_is_read_back_is_what_was_just_written():
    turns = T0(actions=8).turns("n")
    for written, read in ((turns[2], turns[3]), (turns[6], turns[7])):
        assert read.action.path == written.action.path
        assert read.expect.stdout == written.action.data


def test_every_answer_holds_the_nonce_so_that_no_answer_can_be_kept():
    for one, other in zip(T0().turns("aaaa"), T0().turns("bbbb"), strict=True):
        assert one.action != other.action
        assert one.expect.stdout is None or b"aaaa" in one.expect.stdout


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (Observation(stdout=b"x"), None),
        (Observation(stdout=b"y"), "it answered b'y', not b'x'"),
        (Observation(stdout=b"x", exit_code=1), "exit code 1, not 0"),
        (Observation(stdout=b"x", end=End.TIMED_OUT, exit_code=None), "it timed out"),
    ],
)
def test_other_work_is_named(seen, reason):
    assert Expect(stdout=b"x").fault(seen) == reason


def test_a_workload_is_named_as_an_address_is():
    assert make("t0").name == "t0"
    assert make("t0?actions=50").name == "t0?actions=50"
    assert len(make("t0?actions=50").turns("n")) == 50


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("t9", "no workload is called 't9'; there are: t0, t1, t2, t2-net"),
        ("t0?steps=3", "t0 has no option 'steps'; its options: actions"),
        ("t0?actions=many", "t0[?]actions=many: Expected `int`"),
        ("t0?actions=0", "a rollout has at least one action"),
    ],
)
def test_a_wrong_name_is_one_sentence(text, sentence):
    with pytest.raises(SpecError, match=sentence):
        make(text)

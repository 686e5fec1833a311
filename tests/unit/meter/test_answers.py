# A None where a text or a record is expected fails the test: that is what the test is for.
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false, reportArgumentType=false

"""Same work: who answers otherwise than the witness, and what is nobody's fault."""

import asyncio

from excise.action import Observation, Shell
from excise.meter.answers import Sameness, digests
from excise.workloads.workload import Expect, Turn

PLAIN = Turn(Shell("x"))


def digest(turn=PLAIN, nonce="n", **seen):
    return digests((turn,), (Observation(**seen),), nonce)[0]


def judged(standard, answers, *witness):
    """Each of `answers` in turn, with a witness that says these things when it is asked again."""
    asked = []

    async def ask(workload):
        asked.append(workload)
        return witness[min(len(asked), len(witness)) - 1]

    async def body():
        same = Sameness({"w": standard}, ask, "chroot")
        return [await same.fault("w", one) for one in answers]

    return asyncio.run(body()), len(asked)


def test_a_nonce_is_no_difference_and_everything_else_is():
    assert digest(stdout=b"a n1 b", nonce="n1") == digest(stdout=b"a n2 b", nonce="n2")
    assert len({digest(), digest(exit_code=1), digest(stdout=b"x")}) == 3


def test_output_that_the_workload_judges_itself_is_not_compared_twice():
    own = Turn(Shell("x"), Expect(pattern="passed in .*s"))
    assert digest(own, stdout=b"1 passed in 0.3s") == digest(own, stdout=b"1 passed in 0.4s")
    assert digest(own, exit_code=1) != digest(own)


def test_the_same_answers_are_no_fault_and_the_witness_is_not_asked():
    assert judged(["a", "b"], [["a", "b"]]) == ([None], 0)


def test_another_answer_is_a_fault_if_the_witness_stands_by_its_own():
    (fault,), asked = judged(["a", "b"], [["a", "c"]], ["a", "b"])
    assert fault.startswith("action 2 did other work")
    assert "chroot's" in fault
    assert asked == 1


def test_an_answer_that_differs_from_itself_is_nobodys_fault_from_then_on():
    assert judged(["a", "b"], [["a", "c"], ["a", "d"]], ["a", "x"]) == ([None, None], 1)


def test_the_witness_is_not_asked_for_ever():
    faults, asked = judged(["a"], [["z"]] * 10, ["a"])
    assert all(faults)
    assert asked == 2


def test_a_witness_that_fails_judges_nobody_it_has_no_answers_for():
    async def ask(workload):
        return ()

    assert asyncio.run(Sameness({}, ask).fault("w", ["a"])) is None

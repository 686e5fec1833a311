"""The suite itself: it goes on whatever a case does, says one clear reason, and closes every sandbox."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from excise.action import Exec
from excise.api import connect
from excise.cli.check import run_check
from excise.contract import suite
from excise.contract.bench import Bench
from excise.contract.case import Case, case, declared
from excise.errors import SandboxLost, SpecError
from excise.spec import Spec
from excise.substrate import Capabilities, Handle
from excise.substrates.fake import virtual_time

Body = Callable[[Bench], Coroutine[Any, Any, None]]


def judge(body: Body, *, deadline_s: float = 20.0, needs: tuple[str, ...] = ()) -> suite.Verdict:
    made = case(promise="p", why="w", needs=needs)(body)

    async def judged() -> suite.Verdict:
        async with connect("local") as substrate:
            return await suite.judge(made, substrate, await substrate.probe(), Spec(), deadline_s)

    return asyncio.run(judged())


def test_a_case_is_named_after_its_function() -> None:
    async def says_what_it_sees(_: Bench) -> None: ...

    made = case(promise="p", why="w")(says_what_it_sees)
    assert (made.name, made.promise, made.why, made.needs) == ("says-what-it-sees", "p", "w", ())


def test_every_case_has_a_name_of_its_own_a_promise_and_a_reason_to_be_there() -> None:
    assert len({c.name for c in suite.CASES}) == len(suite.CASES) > 90
    for each in suite.CASES:
        assert each.promise.endswith("."), each.name
        assert each.why.endswith("."), each.name


def test_needs_are_abilities_that_exist() -> None:
    nothing = Capabilities()
    for each in suite.CASES:
        assert not any(declared(nothing, need) for need in each.needs), each.name


def test_need_of_a_member_of_a_set() -> None:
    capabilities = Capabilities(limits=frozenset({"pids"}), stream=True)
    assert declared(capabilities, "limits.pids")
    assert declared(capabilities, "stream")
    assert not declared(capabilities, "limits.memory_bytes")
    with pytest.raises(SpecError):
        declared(capabilities, "no_such_ability")


def test_kept() -> None:
    async def works(bench: Bench) -> None:
        assert (await (await bench.sandbox()).run("true")).ok

    assert judge(works).outcome == "kept"


def test_an_error_is_one_line() -> None:
    async def breaks(_: Bench) -> None:
        raise ValueError("first\nsecond")

    verdict = judge(breaks)
    assert (verdict.outcome, verdict.reason) == ("broken", "ValueError: first second")


def test_a_case_past_its_deadline_is_broken() -> None:
    async def hangs(bench: Bench) -> None:
        await (await bench.sandbox()).run("sleep 1000")

    verdict = judge(hangs, deadline_s=0.5)
    assert (verdict.outcome, verdict.reason) == ("broken", "it did not end within 0.5 s")


def test_an_ability_that_is_not_declared_is_not_judged() -> None:
    async def never_runs(_: Bench) -> None:
        raise AssertionError

    verdict = judge(never_runs, needs=("isolates.files",))
    assert (verdict.outcome, verdict.reason) == ("not declared", "local does not declare isolates.files")


def test_sandboxes_are_closed_even_if_the_case_fails_and_one_does_not_close() -> None:
    lost: list[Handle] = []

    async def fails(bench: Bench) -> None:
        async def look() -> None:
            with pytest.raises(SandboxLost):
                await handle.run(Exec(("true",)))
            lost.append(handle)

        async def refuses() -> None:
            raise RuntimeError("will not close")

        bench.at_end(look)  # what is registered first is awaited last
        handle = await bench.handle()
        bench.at_end(refuses)
        raise AssertionError("the case's own reason")

    assert judge(fails).reason == "the case's own reason"
    assert len(lost) == 1


def test_a_sandbox_that_does_not_close_breaks_the_promise() -> None:
    async def fine(bench: Bench) -> None:
        async def refuses() -> None:
            raise RuntimeError("will not close")

        bench.at_end(refuses)

    assert judge(fine).reason == "closing failed: RuntimeError: will not close"


def test_a_check_that_is_cancelled_closes_its_sandboxes() -> None:
    closed: list[str] = []

    async def interrupted() -> None:
        begun = asyncio.Event()

        async def hangs(bench: Bench) -> None:
            async def look() -> None:
                closed.append("closed")

            bench.at_end(look)
            begun.set()
            await (await bench.sandbox()).run("sleep 1000")

        async with connect("local") as substrate:
            made = case(promise="p", why="w")(hangs)
            task = asyncio.ensure_future(suite.judge(made, substrate, await substrate.probe(), Spec(), 20.0))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(interrupted())
    assert closed == ["closed"]


def test_only_some_cases_in_the_suites_order() -> None:
    names = [c.name for c in suite.named({"cwd", "exit-code"})]
    assert names == ["exit-code", "cwd"]


def test_an_unknown_promise_is_refused() -> None:
    with pytest.raises(SpecError, match="no promise is called what, where"):
        suite.named({"where", "what", "cwd"})


def test_each_verdict_is_told_as_it_comes() -> None:
    heard: list[str] = []

    async def checked() -> tuple[suite.Verdict, ...]:
        async with connect("local") as substrate:
            told = lambda v: heard.append(v.case.name)  # noqa: E731
            return await suite.check(substrate, Spec(), only={"exit-code", "argv-exact"}, on_verdict=told)

    verdicts = asyncio.run(checked())
    assert heard == [v.case.name for v in verdicts] == ["exit-code", "argv-exact"]
    assert all(isinstance(v.case, Case) for v in verdicts)


def test_an_image_that_works_in_the_root_directory_breaks_no_promise() -> None:
    """As most images of a Docker daemon do."""

    async def checked() -> tuple[suite.Verdict, ...]:
        async with connect("fake") as substrate:
            return await suite.check(substrate, Spec(workdir="/"))

    assert [v.case.name for v in virtual_time.run(checked()) if v.outcome == "broken"] == []


def made(name: str, *, alone: bool = False) -> Case:
    async def nothing(_: Bench) -> None: ...

    return Case(name=name, promise="p", why="w", alone=alone, run=nothing)


def ran(cases: list[Case], jobs: int) -> list[str]:
    """What begins and ends when, of cases that each wait for a turn or two of the loop."""
    seen: list[str] = []

    async def judged(one: Case) -> suite.Verdict:
        seen.append(f"begin {one.name}")
        await asyncio.sleep(0.01)
        seen.append(f"end {one.name}")
        return suite.Verdict(case=one, outcome="kept")

    async def all_of_them() -> list[str]:
        return [v.case.name async for v in suite.as_they_end(cases, jobs, judged)]

    assert sorted(virtual_time.run(all_of_them())) == sorted(one.name for one in cases)
    return seen


def test_cases_run_side_by_side_and_never_more_than_asked() -> None:
    seen = ran([made(name) for name in "abcde"], 2)
    assert seen[:2] == ["begin a", "begin b"]
    begun = [sum(1 if line.startswith("begin") else -1 for line in seen[: n + 1]) for n in range(len(seen))]
    assert max(begun) == 2


def test_one_at_a_time_keeps_the_suites_order() -> None:
    assert ran([made("a", alone=True), made("b")], 1) == ["begin a", "end a", "begin b", "end b"]


def test_a_case_that_must_be_alone_is() -> None:
    seen = ran([made("a", alone=True), made("b"), made("c"), made("d", alone=True)], 3)
    assert seen == ["begin b", "begin c", "end b", "end c", "begin a", "end a", "begin d", "end d"]


def test_who_stops_listening_ends_what_runs() -> None:
    ended: list[str] = []

    async def judged(one: Case) -> suite.Verdict:
        try:
            await asyncio.sleep(0 if one.name == "a" else 1000)
        finally:
            ended.append(one.name)
        return suite.Verdict(case=one, outcome="kept")

    async def checked() -> None:
        async with aclosing(suite.as_they_end([made(name) for name in "abc"], 2, judged)) as verdicts:
            assert (await anext(verdicts)).case.name == "a"

    virtual_time.run(checked())
    assert ended == ["a", "b"]


@pytest.mark.parametrize("broken", ["many-at-once", "cancel-create-leaks-nothing"])
def test_side_by_side_the_same_is_found(broken: str) -> None:
    async def checked(jobs: int) -> tuple[suite.Verdict, ...]:
        async with connect(f"fake:broken={broken}") as substrate:
            return await suite.check(substrate, Spec(), jobs=jobs)

    alone, beside = virtual_time.run(checked(1)), virtual_time.run(checked(8))
    assert broken in [v.case.name for v in beside if v.outcome == "broken"]
    assert [(v.case.name, v.outcome) for v in beside] == [(v.case.name, v.outcome) for v in alone]
    assert tuple(v.case for v in beside) == suite.CASES


def test_a_case_that_hangs_is_named_and_the_others_go_on() -> None:
    async def checked() -> tuple[suite.Verdict, ...]:
        async with connect("fake:broken=concurrent-actions") as substrate:
            return await suite.check(substrate, Spec(), only={"exit-code", "concurrent-actions", "cwd"}, jobs=2, deadline_s=5.0)

    verdicts = {v.case.name: v for v in virtual_time.run(checked())}
    assert verdicts["concurrent-actions"].reason == "it did not end within 5 s"
    assert {verdicts[name].outcome for name in ("exit-code", "cwd")} == {"kept"}


def test_a_case_that_leaves_a_sandbox_is_named() -> None:
    async def forgets(bench: Bench) -> None:
        await bench.substrate.create(bench.spec, deadline_s=5.0, lease_s=600.0, labels=bench.labels, request_id=bench.nonce)

    async def judged() -> suite.Verdict:
        async with connect("fake") as substrate:
            one = case(promise="p", why="w")(forgets)
            return await suite.judge(one, substrate, await substrate.probe(), Spec(), 20.0)

    assert virtual_time.run(judged()).reason == "closing failed: 1 of its sandboxes are still there"


def test_the_command_says_how_many_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check("fake", case=("cwd", "exit-code"), jobs=2) == 0
    assert "fake: 2 kept" in capsys.readouterr().out
    with pytest.raises(SpecError, match="0 cases at a time"):
        run_check("fake", jobs=0)

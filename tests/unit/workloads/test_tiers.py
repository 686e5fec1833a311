"""T1, T2 and t2-net: what they do, that the answers are the expected ones, and that other answers are told."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from excise.action import Observation, Read, Shell, Write
from excise.errors import ExciseError, SpecError
from excise.sandbox import Sandbox
from excise.spec import Allow, Spec
from excise.workloads.registry import make
from excise.workloads.t2 import T2, middle
from excise.workloads.workload import Expect, Turn, Workload, hosted, requirements

HOST_ROOTS = ["local", "chroot", "namespace"]


async def faults(workload: Workload, address: str, image: str, cache: Path, turns: tuple[Turn, ...] = ()) -> list[str]:
    async with hosted(workload, cache), Sandbox(address, workload.spec(image)) as box:
        found: list[str] = []
        for number, turn in enumerate(turns or workload.turns("f00d")):
            fault = turn.expect.fault(await box.run(turn.action))
            if fault is not None:
                found.append(f"{number}: {fault}")
        return found


def turns_of(workload: Workload, cache: Path, nonce: str = "n") -> tuple[Turn, ...]:
    async def ask() -> tuple[Turn, ...]:
        async with hosted(workload, cache):
            return workload.turns(nonce)

    return asyncio.run(ask())


@pytest.mark.parametrize("address", HOST_ROOTS)
@pytest.mark.parametrize(
    "name", ["t1", "t2?runner=plain", "t2?actions=25&runner=plain&preloaded=true", "t2?runner=plain&bug=b"]
)
def test_the_answers_are_the_expected_ones(
    address: str, name: str, cache: Path, runs_here: Callable[[str], None], has_tools: None
) -> None:
    runs_here(address)
    assert asyncio.run(faults(make(name), address, "host", cache)) == []


@pytest.mark.parametrize("address", ["chroot", "namespace"])
def test_with_pytest(address: str, cache: Path, runs_here: Callable[[str], None], base: None) -> None:
    runs_here(address)
    assert asyncio.run(faults(make("t2"), address, "excise/base", cache)) == []


def test_without_pytest_the_reason_is_told(cache: Path, runs_here: Callable[[str], None], base: None) -> None:
    """Of the project's conftest: it needs hypothesis, which the image does not have."""
    runs_here("chroot")
    found = asyncio.run(faults(make("t2?runner=conftest"), "chroot", "excise/base", cache))
    assert [one.partition(":")[0] for one in found] == ["6", "9"]
    assert "No module named 'hypothesis'" in found[0]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("t1", None),
        ("t2?runner=plain", None),
        ("t2", None),
        ("t2?runner=conftest", "the image has no hypothesis; t2?runner=plain needs none"),
    ],
)
def test_what_the_image_must_have(name: str, sentence: str | None, runs_here: Callable[[str], None], base: None) -> None:
    runs_here("chroot")

    async def lacking() -> list[str]:
        async with Sandbox("chroot", Spec(image="excise/base")) as box:
            return [one.sentence for one in requirements(make(name)) if not (await box.run(one.action)).ok]

    assert asyncio.run(lacking()) == ([sentence] if sentence else [])


def test_a_missing_program_is_named(runs_here: Callable[[str], None], base: None) -> None:
    runs_here("chroot")

    async def lacking() -> list[str]:
        async with Sandbox("chroot", Spec(image="excise/base")) as box:
            await box.remove("/usr/bin/git")
            return [one.sentence for one in requirements(make("t1")) if not (await box.run(one.action)).ok]

    assert asyncio.run(lacking()) == ["the image has no git, which agents need; excise/base has it"]


def test_the_same_text_runs_in_a_shell_that_persists(cache: Path, has_tools: None) -> None:
    workload = make("t2?runner=plain&preloaded=true&actions=20")
    turns = turns_of(workload, cache)
    in_session = tuple(
        msgspec.structs.replace(turn, action=msgspec.structs.replace(turn.action, session="main"))
        if isinstance(turn.action, Shell)
        else turn
        for turn in turns
    )
    assert asyncio.run(faults(workload, "local", "host", cache, in_session)) == []


def test_git_brings_a_preloaded_repository_back(cache: Path, has_tools: None) -> None:
    """The working directory is the repository, so a second rollout finds the start state again."""

    async def twice() -> list[str | None]:
        workload = make("t2?runner=plain&preloaded=true&actions=16")
        async with hosted(workload, cache), Sandbox("local", workload.spec("host")) as box:
            found: list[str | None] = []
            for nonce in ("aaaa", "bbbb"):
                found += [turn.expect.fault(await box.run(turn.action)) for turn in workload.turns(nonce)]
                assert (await box.run("git reset -q --hard && git clean -qfdx")).ok
            return found

    assert asyncio.run(twice()) == [None] * 32


def test_cloned_over_http(cache: Path, runs_here: Callable[[str], None], has_tools: None) -> None:
    runs_here("namespace")
    assert asyncio.run(faults(make("t2-net?runner=plain"), "namespace", "host", cache)) == []


def test_a_substrate_without_a_way_out_says_so(cache: Path) -> None:
    with pytest.raises(ExciseError, match="local does not build network='allow' yet"):
        asyncio.run(faults(make("t2-net"), "local", "host", cache))


def test_only_the_repository_can_be_reached(cache: Path) -> None:
    async def allowed() -> tuple[object, str]:
        workload = make("t2-net")
        async with hosted(workload, cache):
            action = workload.turns("n")[0].action
            assert isinstance(action, Shell)
            return workload.spec("host").network, action.script

    network, script = asyncio.run(allowed())
    assert isinstance(network, Allow)
    assert network.hosts == ("127.0.0.2",)
    assert f"http://127.0.0.2:{network.ports[0]}/" in script


def test_without_the_patch_the_last_test_fails(cache: Path, has_tools: None) -> None:
    workload = make("t2?runner=plain")
    turns = turns_of(workload, cache)
    found = asyncio.run(faults(workload, "local", "host", cache, (*turns[:7], turns[9])))
    assert len(found) == 1
    assert found[0].startswith("7: exit code 1, not 0: AssertionError")


def test_a_kept_answer_is_a_wrong_one(cache: Path) -> None:
    """What a command printed for another trial's nonce does not pass."""
    workload = make("t2")
    one, other = turns_of(workload, cache, "aaaa"), turns_of(workload, cache, "bbbb")
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(mine.action, Shell):
            assert mine.expect.fault(Observation(exit_code=mine.expect.exit_code, stdout=theirs.expect.tail)) is not None
        if isinstance(mine.action, Write):
            assert isinstance(theirs.action, Write)
            assert mine.action.path != theirs.action.path


# ---- what they are made of


@pytest.mark.parametrize(("actions", "mix"), [(50, (16, 12, 8, 4)), (150, (56, 42, 28, 14)), (13, (1, 1, 1, 0)), (10, ())])
def test_the_mix_is_as_documented(actions: int, mix: tuple[int, ...]) -> None:
    counts = Counter(kind for kind, _ in middle(actions - 10))
    assert tuple(counts[kind] for kind in ("inspect", "execute", "modify", "tests")) == (mix or (0, 0, 0, 0))


@pytest.mark.parametrize("name", ["t1", "t1?actions=50", "t2", "t2?actions=150", "t2-net?actions=50"])
def test_every_trial_has_the_same_actions(name: str, cache: Path) -> None:
    workload = make(name)
    one, other = turns_of(workload, cache, "aaaa"), turns_of(workload, cache, "bbbb")
    assert len(one) == int(name.partition("actions=")[2] or 10)
    assert [type(turn.action) for turn in one] == [type(turn.action) for turn in other]
    if name != "t2-net?actions=50":  # its server has another port each time
        plain = [_without(turn, "aaaa") for turn in one]
        assert plain == [_without(turn, "bbbb") for turn in other]
    words = [turn.expect.tail for turn in one if turn.expect.tail]
    assert len(set(words)) == len(words)


def _without(turn: Turn, nonce: str) -> bytes:
    return msgspec.json.encode(turn.action).replace(nonce.encode(), b"") if not isinstance(turn.action, Write) else b"write"


def test_a_longer_trajectory_begins_and_ends_as_the_short_one(cache: Path) -> None:
    kinds = [type(turn.action) for turn in turns_of(T2(actions=150), cache)]
    assert kinds[:7] == [Shell] * 7
    assert kinds[-3:] == [Write, Shell, Shell]
    assert {Read, Write, Shell} == set(kinds)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("t2?actions=10", "t2"),
        ("t2?bug=b&actions=150", "t2?actions=150&bug=b"),
        ("t2-net?runner=plain", "t2-net?runner=plain"),
        ("t1?actions=10", "t1"),
        ("t2?preloaded=true", "t2?preloaded=true"),
    ],
)
def test_a_workload_has_one_name(text: str, name: str) -> None:
    assert make(text).name == name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("t2?actions=9", "clone, inspect, patch and test are 10 actions; give at least that many"),
        ("t1?actions=0", "at least one action"),
        ("t2?runner=nose", "t2[?]runner=nose: Invalid enum value 'nose'"),
    ],
)
def test_a_wrong_option_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        make(text)


def test_outside_of_hosted_it_says_so() -> None:
    with pytest.raises(RuntimeError, match="not built yet"):
        T2().turns("n")


@pytest.mark.parametrize(
    ("expect", "seen", "reason"),
    [
        (Expect(tail=b"w\n"), Observation(stdout=b"out\nw\n"), None),
        (Expect(tail=b"w\n"), Observation(stdout=b"out\n"), "its answer ends in b'out\\n', not in b'w\\n'"),
        (
            Expect(tail=b"w", sha256="0" * 64),
            Observation(stdout=b"aw"),
            "it answered 1 bytes with digest ca978112ca1b, not 000",
        ),
        (Expect(pattern="^2 passed"), Observation(stdout=b"1 passed", stderr=b"x\nwhy\n"), "'^2 passed' but b'1 passed': why"),
        (Expect(pattern="^1 passed"), Observation(stdout=b"..\n1 passed in 0.1s\n"), None),
        (Expect(exit_code=None), Observation(exit_code=7), None),
    ],
)
def test_a_fault_says_what_was_seen(expect: Expect, seen: Observation, reason: str | None) -> None:
    fault = expect.fault(seen)
    assert (fault is None) if reason is None else (fault is not None and reason in fault)

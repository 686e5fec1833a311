"""Actions and Observations are data: they cross a wire unchanged, and say plainly how things ended."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from excise.action import (
    Action,
    Batch,
    End,
    Exec,
    Keep,
    List,
    MakeDir,
    Move,
    Observation,
    Pty,
    Read,
    Remove,
    Shell,
    Stat,
    Write,
)
from excise.errors import SpecError

ACTIONS: tuple[Action, ...] = (
    Exec(("echo", "it's", ""), cwd="/tmp", env={"A": "ü"}, stdin=b"\xff\0", timeout_s=1.5, user="nobody"),
    Shell("a | b", session="main", pty=Pty(40, 132), merge=True, keep=Keep(1, 2)),
    Read("/f", 3, 4),
    Write("/f", b"\0\xff", mode=0o600, append=True),
    List("/d"),
    Stat("/d"),
    Remove("/d", recursive=True),
    Move("/a", "/b"),
    MakeDir("/d", mode=0o700),
    Batch((Exec(("true",)), Read("/f")), stop_on_failure=False),
)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: type(action).__name__)
@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack], ids=["json", "msgpack"])
def test_an_action_crosses_a_wire_unchanged(action: Action, codec: Any) -> None:
    assert codec.decode(codec.encode(action), type=Action) == action


def test_an_observation_crosses_a_wire_unchanged() -> None:
    seen = Observation(end=End.SIGNALED, exit_code=None, signal=9, stdout=b"\xff", parts=(Observation(guest_ns=3),))
    assert msgspec.json.decode(msgspec.json.encode(seen), type=Observation) == seen


def test_an_action_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Exec(("true",)).argv = ("false",)  # pyright: ignore[reportAttributeAccessIssue] - that is the point


@pytest.mark.parametrize("make", [lambda t: Exec(("true",), timeout_s=t), lambda t: Shell("true", timeout_s=t)])
def test_a_timeout_that_is_no_number_is_refused(make: Callable[[float], object]) -> None:
    make(0.5)
    with pytest.raises(SpecError, match="timeout_s=nan is no duration"):
        make(float("nan"))


def test_an_empty_argv_is_refused() -> None:
    with pytest.raises(SpecError, match="argv is empty"):
        Exec(())


@pytest.mark.parametrize("make", [lambda: Exec(("echo", "a\0b")), lambda: Shell("echo a\0b")], ids=["exec", "shell"])
def test_a_nul_in_a_command_is_refused_and_the_way_around_is_named(make: Any) -> None:
    with pytest.raises(SpecError, match="by stdin or a file"):
        make()


@pytest.mark.parametrize(
    ("seen", "ok"),
    [
        (Observation(), True),
        (Observation(exit_code=1), False),
        (Observation(exit_code=None, end=End.SIGNALED, signal=9), False),
        (Observation(end=End.TIMED_OUT), False),
        (Observation(errno=2), False),
        (Observation(parts=(Observation(), Observation())), True),
        (Observation(parts=(Observation(exit_code=1), Observation())), False),
    ],
)
def test_ok_means_that_everything_went_well(seen: Observation, *, ok: bool) -> None:
    assert seen.ok is ok


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (Observation(stdout=b"out\n", stderr=b"err\n"), "out\nerr\n"),
        (Observation(stdout=b"\xff!"), "\N{REPLACEMENT CHARACTER}!"),
        (Observation(stdout=b"x", exit_code=3), "x\n[exit code 3]"),
        (Observation(exit_code=None, end=End.SIGNALED, signal=11), "\n[killed by signal 11]"),
        (Observation(exit_code=None, end=End.OUT_OF_MEMORY), "\n[out of memory]"),
        (Observation(stdout=b"ab", dropped_bytes=7), "ab\n[7 bytes dropped from the middle]"),
        (Observation(dropped_bytes=7, end=End.TIMED_OUT), "\n[7 bytes dropped from the middle]\n[timed out]"),
    ],
)
def test_text_is_what_a_policy_reads(seen: Observation, text: str) -> None:
    assert seen.text == text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Read("f", offset=-1),
        lambda: Read("f", length=1 << 63),
        lambda: Write("f", b"", mode=0o10000),
        lambda: MakeDir("d", mode=-1),
        lambda: Pty(rows=65536),
        lambda: Keep(tail_bytes=-1),
    ],
)
def test_a_number_that_no_kernel_has_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(SpecError, match="is not from 0 to"):
        make()

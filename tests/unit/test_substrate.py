"""What a substrate cannot honour is refused before anything is made, in one sentence that names it and the way out."""

from typing import Literal

import pytest

from excise.action import Exec, Pty, Shell
from excise.errors import SpecError, Unsupported
from excise.spec import Allow, Kernel, Limits, Mount, Spec
from excise.substrate import Capabilities, require, require_command, unsupported

NOTHING = Capabilities()
ALL = Capabilities(
    kernel="own",
    snapshot="files",
    stream=True,
    sessions=True,
    pty=True,
    users=True,
    mounts=True,
    devices=True,
    limits=frozenset(Limits.__struct_fields__),
    network=frozenset({"none", "allow", "open"}),
)
DEMANDING = Spec(
    needs=frozenset({"snapshot", "stream"}),
    isolation="own",
    limits=Limits(memory_bytes=1, cpus=1.0, pids=1, disk_bytes=1, inodes=1),
    network=Allow(("host",)),
    mounts=(Mount("/a", "/b"),),
    devices=("/dev/kvm",),
    user="nobody",
)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (Spec(needs=frozenset({"snapshot", "pty"})), "x lacks pty, snapshot, which the spec needs; `excise doctor` shows"),
        (Spec(isolation="intercepted"), "x has a shared kernel; the spec wants it at least intercepted"),
        (Spec(limits=Limits(pids=9, cpus=1.0)), "x does not enforce limits on cpus, pids; drop them or choose another"),
        (Spec(network="none"), "x cannot cut the network off; leave network unset to accept that, or choose another"),
        (Spec(network="open"), "x does not build network='open' yet; it has: none"),
        (Spec(network=Allow(("host",))), "x does not build network='allow' yet; it has: none"),
        (Spec(mounts=(Mount("/a", "/b"),)), "x does not build the spec's mounts yet; leave the field out"),
        (Spec(devices=("/dev/kvm",)), "x does not build the spec's devices yet; leave the field out"),
        (Spec(user="nobody"), "x runs everything as one user; leave user= out, or choose another substrate"),
    ],
)
def test_a_spec_that_asks_for_more_is_refused(spec: Spec, sentence: str) -> None:
    with pytest.raises(SpecError) as refused:
        require(spec, NOTHING, "x")
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_a_spec_that_asks_for_what_is_there_is_taken() -> None:
    require(DEMANDING, ALL, "x")
    require(Spec(), NOTHING, "x")


@pytest.mark.parametrize("mode", ["none", "open"])
def test_a_network_mode_that_is_built_is_taken_and_the_others_are_named(mode: Literal["none", "open"]) -> None:
    only = Capabilities(network=frozenset({mode}))
    require(Spec(network=mode), only, "x")
    with pytest.raises(SpecError, match=f"it has: {mode}"):
        require(Spec(network=Allow(("host",))), only, "x")


def test_steps_with_another_network_need_a_substrate_that_can() -> None:
    modes = Capabilities(network=frozenset({"none", "open"}))
    with pytest.raises(SpecError, match="x has one network for steps and actions; leave build_network out"):
        require(Spec(network="none", build_network="open"), modes, "x")
    require(Spec(network="open", build_network="open"), modes, "x")
    both = Capabilities(network=modes.network, build_network=True)
    require(Spec(network="none", build_network="open"), both, "x")
    with pytest.raises(SpecError, match="x does not build build_network='allow' yet; it has: none, open"):
        require(Spec(network="none", build_network=Allow(("host",))), both, "x")
    with pytest.raises(SpecError, match="leave build_network unset"):
        require(Spec(build_network="none"), Capabilities(network=frozenset({"open"}), build_network=True), "x")


KERNELS: tuple[Kernel, ...] = ("shared", "intercepted", "own")


@pytest.mark.parametrize("wanted", KERNELS)
@pytest.mark.parametrize("there", KERNELS)
def test_more_separation_than_was_asked_for_is_fine(wanted: Kernel, there: Kernel) -> None:
    spec, capabilities = Spec(isolation=wanted), Capabilities(kernel=there)
    if KERNELS.index(there) >= KERNELS.index(wanted):
        require(spec, capabilities, "x")
    else:
        with pytest.raises(SpecError, match=f"x has a {there} kernel"):
            require(spec, capabilities, "x")


@pytest.mark.parametrize("name", ["teleport", "kernel", "versions", "has", ""])
def test_an_ability_nobody_has_is_a_mistake_in_the_spec(name: str) -> None:
    with pytest.raises(SpecError, match=f"no ability is called '{name}'; there are: adopts, attach, background, .*users"):
        require(Spec(needs=frozenset({name})), ALL, "x")


@pytest.mark.parametrize("name", ["stream", "snapshot", "limits", "network"])
def test_has_says_whether_an_ability_is_there(name: str) -> None:
    assert ALL.has(name) is True
    assert NOTHING.has(name) is False


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (Exec(("true",), user="nobody"), "user="),
        (Exec(("true",), pty=Pty()), "pty="),
        (Shell("true", pty=Pty()), "pty="),
        (Shell("true", session="main"), "session="),
        (Shell("true", session=""), "session="),
    ],
)
def test_a_command_that_asks_for_more_is_refused(command: Exec | Shell, word: str) -> None:
    require_command(command, ALL, "x")
    with pytest.raises(Unsupported) as refused:
        require_command(command, NOTHING, "x")
    assert str(refused.value) == f"x does not have {word}; its Capabilities say so"


def test_a_plain_command_runs_anywhere() -> None:
    require_command(Exec(("true",), cwd="/", env={"A": "1"}, stdin=b"x", timeout_s=1.0, merge=True), NOTHING, "x")
    require_command(Shell("true"), NOTHING, "x")


def test_what_is_unsupported_is_the_requests_fault() -> None:
    assert isinstance(unsupported("x", "snapshot"), SpecError)


@pytest.mark.parametrize("command", [Exec(("s",), stdin=b"x"), Exec(("s",), pty=Pty()), Shell("s", session="main")])
def test_a_boot_command_takes_nothing_that_needs_somebody_there(command: Exec | Shell) -> None:
    able = Capabilities(background=True, pty=True, sessions=True)
    require(Spec(boot=(Exec(("s",), cwd="/", env={"A": "b"}),)), able, "x")
    with pytest.raises(SpecError, match="a boot command runs in the background"):
        require(Spec(boot=(command,)), able, "x")


def test_a_repository_without_a_commit_is_refused_before_anything_is_made() -> None:
    with pytest.raises(SpecError, match="is not url@commit"):
        require(Spec(repo="https://example.org/x.git"), NOTHING, "x")

"""What a rollout asks for: in what order it is prepared, what is refused, and that secrets stay secret."""

import copy
import logging
import math
import pickle
from collections.abc import Callable

import msgspec
import pytest

from excise.action import Shell
from excise.errors import SpecError
from excise.spec import Limits, Secret, Spec, Stage, Step
from excise.substrate import Snapshot

COMMIT = "0123456789abcdef0123456789abcdef01234567"
VALUE = "hunter2-and-more"


def test_steps_run_clone_first_then_dependencies_then_the_rest_in_order() -> None:
    first, second = Step("one", (Shell("1"),)), Step("two", (Shell("2"),), Stage.IMAGE)
    spec = Spec(repo=f"https://host/x.git@{COMMIT}", deps="pip install .", steps=(first, second))
    steps = spec.all_steps()
    assert [(step.name, step.stage) for step in steps] == [
        ("repo", Stage.REPO),
        ("deps", Stage.DEPS),
        ("one", Stage.DEPS),
        ("two", Stage.IMAGE),
    ]
    assert steps[1].actions == (Shell("pip install ."),)
    assert Spec().all_steps() == ()


@pytest.mark.parametrize("url", ["https://host/x.git", "git@host:group/x.git", "ssh://git@host/x", "../x"])
def test_a_repository_is_cloned_at_its_commit_whatever_its_url_holds(url: str) -> None:
    (step,) = Spec(repo=f"{url}@{COMMIT}").all_steps()
    (clone,) = step.actions
    assert isinstance(clone, Shell)
    # As variables, never as part of the script: a URL cannot become a command.
    assert clone.env == {"url": url, "commit": COMMIT}
    assert url not in clone.script


@pytest.mark.parametrize(
    "repo",
    [
        "",
        "https://host/x.git",
        "@",
        f"@{COMMIT}",
        "https://host/x.git@",
        "git@host:group/x.git",
        "git@host:x.git",
        "https://host/x@feature/branch",
        "https://host/x@--upload-pack=evil",
        f"--upload-pack=evil@{COMMIT}",
    ],
)
def test_a_repository_without_a_commit_is_refused(repo: str) -> None:
    with pytest.raises(SpecError) as refused:
        Spec(repo=repo).all_steps()
    assert str(refused.value) == f"repo={repo!r} is not url@commit; name the commit, so that the start state is one state"


def test_asked_names_the_limits_that_were_asked_for() -> None:
    assert Limits().asked() == frozenset()
    assert Limits(memory_bytes=1, disk_bytes=0).asked() == {"memory_bytes", "disk_bytes"}


@pytest.mark.parametrize("name", ["memory_bytes", "pids", "disk_bytes", "inodes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, (1 << 62) + 1, "1"])
def test_a_limit_that_is_no_amount_is_refused(name: str, value: object) -> None:
    Limits(**{name: 1}).check()
    Limits(**{name: 1 << 62}).check()
    with pytest.raises(SpecError, match=rf"^limits\.{name}=.*whole number.*leave it out for no limit$"):
        Limits(**{name: value}).check()  # pyright: ignore[reportArgumentType] - that is the point


@pytest.mark.parametrize("cpus", [0, -1, 0.0, math.nan, math.inf, "1"])
def test_a_share_of_processors_that_is_none_is_refused(cpus: float) -> None:
    Limits(cpus=1e-9).check()
    Limits(cpus=2).check()
    with pytest.raises(SpecError, match=r"^limits\.cpus=.*above 0"):
        Limits(cpus=cpus).check()


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Spec().image = "other"  # pyright: ignore[reportAttributeAccessIssue] - that is the point


def test_a_spec_takes_names_only() -> None:
    with pytest.raises(TypeError):
        Spec("debian")  # pyright: ignore[reportCallIssue] - that is the point


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="imgae"):
        Spec(imgae="debian")  # pyright: ignore[reportCallIssue] - that is the point


# ---- secrets

SPEC = Spec(secrets={"TOKEN": Secret(VALUE)})
SNAPSHOT = Snapshot(id="1", address="fake", spec=SPEC)


def test_a_secret_in_plain_text_is_refused_and_not_shown() -> None:
    with pytest.raises(SpecError, match="the secret TOKEN is plain text") as refused:
        Spec(secrets={"TOKEN": "hush"})  # pyright: ignore[reportArgumentType]
    assert "hush" not in str(refused.value)


def test_a_secret_is_told_to_who_asks_for_it() -> None:
    assert Secret(VALUE).reveal() == VALUE


@pytest.mark.parametrize("holder", [Secret(VALUE), SPEC, SNAPSHOT], ids=["secret", "spec", "snapshot"])
@pytest.mark.parametrize("write", [repr, str, ascii, "{}".format])
def test_no_text_shows_a_secret(holder: object, write: Callable[[object], str]) -> None:
    text = write(holder)
    assert VALUE not in text
    assert "***" in text


@pytest.mark.parametrize("holder", [Secret(VALUE), SPEC, SNAPSHOT], ids=["secret", "spec", "snapshot"])
@pytest.mark.parametrize("encode", [pickle.dumps, copy.deepcopy, msgspec.json.encode, msgspec.msgpack.encode])
def test_a_secret_is_not_written_out(holder: object, encode: Callable[[object], object]) -> None:
    with pytest.raises(TypeError) as refused:
        encode(holder)
    assert VALUE not in str(refused.value)


def test_a_secret_does_not_reach_a_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("opening %s", SPEC)
    assert "***" in caplog.text
    assert VALUE not in caplog.text


def test_a_lock_is_that_of_the_deps_step_and_a_clone_has_siblings() -> None:
    clone, deps = Spec(repo=f"https://host/x.git@{COMMIT}", deps="install", lock="sha256:1").all_steps()
    assert (clone.of, clone.lock, deps.of, deps.lock) == ("https://host/x", None, "", "sha256:1")
    (switch,) = clone.switch
    assert isinstance(switch, Shell)
    assert switch.env == {"url": "https://host/x.git", "commit": COMMIT}  # as variables, as for the clone


def test_steps_that_are_unshared_or_replaced_keep_siblings_and_locks() -> None:
    spec = Spec(repo=f"https://host/x.git@{COMMIT}", deps="install", lock="sha256:1")
    for made in (spec.unshared(), spec.with_steps(spec.all_steps())):
        kept = [(step.of, step.switch, step.lock) for step in made.all_steps()]
        assert kept == [(step.of, step.switch, step.lock) for step in spec.all_steps()]
    assert not any(step.share for step in spec.unshared().all_steps())
    assert spec.with_steps(()).all_steps() == ()


@pytest.mark.parametrize(("lock", "deps"), [("x", None), ("", "install")])
def test_a_lock_that_says_nothing_of_anything_is_refused(lock: str, deps: str | None) -> None:
    with pytest.raises(SpecError, match="lock="):
        Spec(lock=lock, deps=deps)


def test_a_step_of_before_there_were_siblings_is_still_read() -> None:
    old = b'{"name":"deps","actions":[{"action":"shell","script":"x"}],"stage":"deps"}'
    assert msgspec.json.decode(old, type=Step) == Step("deps", (Shell("x"),))
    (clone,) = Spec(repo=f"https://host/x.git@{COMMIT}").all_steps()
    assert msgspec.json.decode(msgspec.json.encode(clone), type=Step) == clone

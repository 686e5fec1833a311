"""Code that meddles with the guest, its runners and other actions: a result stays a result, and the sandbox is not lost."""

import resource
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from excise.action import End
from excise.spec import Spec
from excise.sync import Sandbox

HERE = Path(__file__).parent
INSIDE = "/tmp/meddling"


@pytest.fixture(scope="module")
def meddling(tmp_path_factory: pytest.TempPathFactory, program: Path) -> bytes:
    """The ways to meddle, as a static program; `program` has seen to it that there is a compiler."""
    built = tmp_path_factory.mktemp("meddling") / "meddling"
    options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-static"]
    subprocess.run(["gcc", *options, "-o", built, HERE / "meddling.c"], check=True, timeout=60)
    return built.read_bytes()


@pytest.fixture
def box(runs_here: Callable[[str], None], meddling: bytes) -> Generator[Sandbox]:
    """A sandbox of the test's own: what is done to it must not reach the next test."""
    runs_here("namespace")
    with Sandbox("namespace", Spec(image="host"), timeout_s=60) as sandbox:
        sandbox.write(INSIDE, meddling, mode=0o755)
        yield sandbox


def alive(box: Sandbox) -> bool:
    return box.run(["echo", "there"]).text == "there\n"


@pytest.mark.parametrize("limit", ["NOFILE", "CPU", "AS", "FSIZE", "NPROC", "SIGPENDING"])
def test_limits_of_the_guest_are_not_the_sandboxs_to_set(limit: str, box: Sandbox) -> None:
    assert box.run([INSIDE, "limit", "1", str(getattr(resource, f"RLIMIT_{limit}", 11))]).text == "Operation not permitted\n"
    assert alive(box)


def test_limits_of_a_runner_are_not_the_sandboxs_to_set(box: Sandbox, other_users: None) -> None:
    assert box.run([INSIDE, "limit", "0", str(resource.RLIMIT_NOFILE)]).text == "Operation not permitted\n"
    assert alive(box)


def test_limits_of_a_program_are_its_own_and_its_users(box: Sandbox) -> None:
    seen = box.run(
        "sleep 60 & prlimit --pid $! --nofile=7:7 && grep 'open files' /proc/$!/limits; kill $!; grep ^Uid: /proc/self/status"
    )
    assert seen.text.split() == ["Max", "open", "files", "7", "7", "files", "Uid:", "0", "0", "0", "0"]


def test_what_a_program_does_as_its_runners_tracee_is_not_its_end(box: Sandbox) -> None:
    seen = box.run([INSIDE, "traced"], timeout_s=10)
    assert (seen.end, seen.exit_code, seen.still_running) == (End.EXITED, 7, False)


def test_a_sibling_does_not_answer_for_the_program(box: Sandbox) -> None:
    assert box.run([INSIDE, "good-sibling"]).exit_code == 3


@pytest.mark.parametrize("session", [None, "main"])
@pytest.mark.parametrize("how", ["zombie", "exit"])
def test_a_tracer_does_not_keep_what_it_traces_from_being_killed(how: str, session: str | None, box: Sandbox) -> None:
    box.run([INSIDE, "tracer", how])
    seen = box.run("sleep 0.3", session=session, timeout_s=1)
    assert seen.end is End.TIMED_OUT
    assert box.read("/tmp/traced") != b""
    assert box.run("sleep 0.1", session=session, timeout_s=10).ok  # whoever held it is gone
    assert alive(box)


def test_siblings_that_follow_each_other_are_killed_in_time(box: Sandbox) -> None:
    seen = box.run([INSIDE, "siblings", "4"], timeout_s=1)
    assert seen.end is End.TIMED_OUT
    assert alive(box)
    assert box.run("grep -lx meddling /proc/[0-9]*/comm | wc -l").text == "0\n"


def test_what_gets_no_processor_time_dies_in_time(box: Sandbox) -> None:
    box.run([INSIDE, "loops", "100"])
    assert box.run([INSIDE, "starve"], timeout_s=1).end is End.TIMED_OUT
    # Those stood still for it, and go on: they are an earlier action's.
    left = box.run("cat /proc/[0-9]*/stat | grep '(meddling)' | cut -d ' ' -f 3 | sort | uniq -c", timeout_s=50)
    assert left.text.split() == ["100", "R"]

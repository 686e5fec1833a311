"""Which rule said no, and what is advised: from what the machine says of itself."""

import errno
import os
import struct

import pytest

from excise.errors import CapacityError, CreateError, SpecError, SubstrateError
from excise.guest import wire
from excise.substrates.namespace import denial, request
from excise.substrates.namespace.denial import Facts

PLAIN = Facts(most_user_namespaces=1000)


def failed(id: int, step: bytes, number: int) -> request.Answer:
    head = struct.pack("<II", request.FAILED, id)
    return request.answer(head + wire.field(request.TAG_STEP, step) + wire.number(request.TAG_ERRNO, number))


@pytest.mark.parametrize(
    ("seen", "reason", "remedy"),
    [
        (Facts(), "kernel has no user namespaces", "CONFIG_USER_NS"),
        (Facts(most_user_namespaces=0), "max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000"),
        (Facts(most_user_namespaces=9, debian_denies=True), "unprivileged_userns_clone is 0", "unprivileged_userns_clone=1"),
        (
            Facts(most_user_namespaces=9, apparmor_denies=True, launcher="/x/excise-launch"),
            "AppArmor restricts",
            "profile excise /x/excise-launch flags=(unconfined) { userns, }",
        ),
        (Facts(most_user_namespaces=9, filtered=True), "seccomp filter", "--security-opt seccomp=unconfined"),
        (Facts(most_user_namespaces=9, proc_is_masked=True), "/proc is masked", "--security-opt systempaths=unconfined"),
        (
            Facts(most_user_namespaces=9, filtered=True, apparmor_profile="docker-default"),
            "profile docker-default refuses mounts",
            "--security-opt apparmor=unconfined",
        ),
        (PLAIN, "no rule that Excise knows of", "dmesg"),
    ],
)
def test_each_rule_is_named_with_its_remedy(seen: Facts, reason: str, remedy: str) -> None:
    rule = denial.explain(errno.EPERM, seen)
    assert reason in rule.reason
    assert remedy in rule.remedy


def test_root_is_not_told_of_the_rules_for_ordinary_users() -> None:
    seen = Facts(is_root=True, most_user_namespaces=9, debian_denies=True, apparmor_denies=True)
    assert denial.explain(errno.EPERM, seen) == denial.explain(errno.EPERM, PLAIN)


def test_an_unconfined_container_is_not_told_of_apparmor() -> None:
    seen = Facts(most_user_namespaces=9, filtered=True, apparmor_profile="unconfined")
    assert "apparmor" not in denial.explain(errno.EPERM, seen).remedy


def test_a_limit_that_is_reached() -> None:
    assert "limit of namespaces" in denial.explain(errno.ENOSPC, PLAIN).reason


def test_this_machine_can_be_asked() -> None:
    seen = denial.facts("/x/excise-launch")
    assert seen.is_root == (os.geteuid() == 0)
    assert seen.launcher == "/x/excise-launch"
    assert seen.most_user_namespaces is None or seen.most_user_namespaces >= 0


def test_root_in_a_container_is_told_to_be_another() -> None:
    """Its own files cannot be mapped, so the flags that let a container mount are not enough for root."""
    answer = failed(1, b"map the owners of /usr: its file system cannot be idmapped", errno.EINVAL)
    inside = Facts(is_root=True, most_user_namespaces=9, root_is_overlay=True)
    error = denial.not_made(answer, inside)
    assert type(error) is SpecError
    assert "docker run --user 1000; a pod: securityContext runAsUser 1000" in str(error)
    for other in (Facts(most_user_namespaces=9, root_is_overlay=True), Facts(is_root=True, most_user_namespaces=9)):
        assert "runAsUser" not in str(denial.not_made(answer, other))


def test_a_container_of_an_older_runtime_has_a_remedy_too() -> None:
    assert (
        "privileged true and runAsUser 1000" in denial.explain(errno.EPERM, Facts(most_user_namespaces=9, filtered=True)).remedy
    )


def test_cannot_run_says_step_rule_and_remedy() -> None:
    error = denial.cannot_run(failed(0, b"clone", errno.EPERM), PLAIN)
    assert type(error) is SubstrateError
    assert str(error).startswith("namespace cannot make sandboxes here: clone: Operation not permitted: no rule that")


@pytest.mark.parametrize(
    ("step", "number"),
    [
        (b"make /run/excise", errno.EROFS),
        (b"make /tmp/excise-1000", errno.ENOSPC),
        (b"use /tmp/excise-1000: it is no directory of this user's own", errno.EPERM),
        (b"open /run/excise/ids", errno.ENOTDIR),
    ],
)
def test_a_launcher_without_a_directory_of_its_own_names_it(step: bytes, number: int) -> None:
    error = denial.cannot_run(failed(0, step, number), PLAIN)
    assert str(error).startswith(f"namespace cannot make sandboxes here: {step.decode()}: {os.strerror(number)}: its launcher")
    assert "make that one writable, or remove what has its name" in str(error)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOMEM, CapacityError), (errno.EAGAIN, CapacityError), (errno.ENOENT, CreateError)]
)
def test_a_shortage_is_told_from_a_failure(number: int, kind: type[Exception]) -> None:
    error = denial.not_made(failed(1, b"mount overlay", number), PLAIN)
    assert type(error) is kind
    assert "mount overlay" in str(error)


@pytest.mark.parametrize(
    ("step", "number", "remedy"),
    [
        (b"map the owners of /dev/shm/x: its file system cannot be idmapped", errno.EINVAL, "ext4, xfs or btrfs"),
        (b"show the device /dev/vda: it is no character device", errno.ENODEV, "a character device"),
        (b"show /etc/passwd", errno.EINVAL, "a file for a file"),
        (b"make /dev/null/x", errno.ENOTDIR, "another workdir"),
        (b"open /usr: other file systems are mounted below it", errno.EINVAL, "excise image build"),
    ],
)
def test_what_the_spec_asked_for_in_vain_is_its_mistake(step: bytes, number: int, remedy: str) -> None:
    error = denial.not_made(failed(1, step, number), PLAIN)
    assert type(error) is SpecError
    assert step.decode() in str(error)
    assert remedy in str(error)
    assert type(denial.not_made(failed(1, step, errno.ENOSPC), PLAIN)) is CapacityError


@pytest.mark.parametrize(("number", "remedy"), [(errno.ENODEV, "modprobe overlay"), (errno.EINVAL, "5.19 or newer for root")])
def test_a_kernel_without_an_overlay_that_will_do_is_told_so(number: int, remedy: str) -> None:
    error = denial.not_made(failed(1, b"mount the overlay over /x", number), PLAIN)
    assert type(error) is CreateError
    assert remedy in str(error)


def test_a_launcher_that_cannot_be_started() -> None:
    full = denial.not_started(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
    assert type(full) is CapacityError
    assert "ulimit -u" in str(full)
    refused = denial.not_started(OSError(errno.EACCES, "Permission denied", "/x/excise-launch"))
    assert str(refused).startswith("/x/excise-launch cannot be run (Permission denied): ")


def test_one_that_was_denied_says_by_what() -> None:
    seen = Facts(most_user_namespaces=9, proc_is_masked=True)
    error = denial.not_made(failed(1, b"mount /proc", errno.EPERM), seen)
    assert "its /proc is masked" in str(error)
    assert "systempaths=unconfined" in str(error)


@pytest.mark.parametrize(
    ("subuid", "span"),
    [
        ("", "100000-165535"),
        ("ada:100000:65536\nbob:165536:65536\n", "231072-296607"),
        ("odd line\nada:x:y\n", "100000-165535"),
    ],
)
def test_a_range_that_is_nobodys_is_advised(subuid: str, span: str) -> None:
    assert f"usermod --add-subuids {span} --add-subgids {span} $USER" in denial.more_uids(subuid)

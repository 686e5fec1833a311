"""What changed between layers, against the difference of what the kernel shows; and as a patch that git applies."""

import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings

from excise.patch import Side, section
from excise.storage.trees import whole
from excise.storage.trees.diff import BOTH, Found, diff

from .overlays import layers, opened, operations, overlay, seen

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="overlays are mounted by root here; rootless ones by the flow tests")
real = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _diff(tops: Sequence[Path], bases: Sequence[Path], **more: Any) -> list[Found]:
    with opened(*tops, *bases) as descriptors:
        return diff(descriptors[: len(tops)], descriptors[len(tops) :], **more)


def _patch(found: Sequence[Found]) -> str:
    made = ""
    for one in found:
        before = None if one.before is None or one.before_mode is None else Side(one.before_mode, one.before)
        after = None if one.after is None or one.mode is None else Side(one.mode, one.after)
        if before != after:
            made += section(os.fsdecode(one.path), before, after)
    return made


@root_only
@real
@given(base=operations, first=operations, second=operations)
@example(base=[], first=[("remove", "a"), ("make_directory", "a"), ("make_directory", "a/b")], second=[])
@example(base=[], first=[("remove", "a"), ("write", "a", b"now a file\n")], second=[])
@example(base=[], first=[("attribute", "a", b"x")], second=[])
def test_changes_are_the_difference_of_what_is_shown(
    tmp_path: Path, base: list[Any], first: list[Any], second: list[Any]
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as made:
        place = Path(made)
        *uppers, lower = layers(place, base, [first, second])
        with overlay(place / "new", [*uppers, lower]) as shown:
            after = seen(shown)
        before = seen(lower)
        wanted = {
            path: "added" if path not in before else "deleted" if path not in after else "modified"
            for path in {*before, *after}
            if before.get(path) != after.get(path)
        }
        found = _diff(uppers, [lower], contents=BOTH)
        assert {os.fsdecode(one.path): one.kind for one in found} == wanted
        for one in found:
            path = os.fsdecode(one.path)
            assert one.before_mode == before.get(path, (None,))[0]
            assert one.mode == after.get(path, (None,))[0]


@root_only
@real
@given(base=operations, done=operations)
@example(base=[], done=[("remove", "a"), ("write", "a", b"now a file\n")])
@example(base=[], done=[("remove", "c"), ("make_directory", "c"), ("write", "c/a", b"no file any more")])
def test_the_patch_of_changes_makes_the_new_files_of_the_old(tmp_path: Path, base: list[Any], done: list[Any]) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as made:
        place = Path(made)
        upper, lower = layers(place, base, [done])
        with overlay(place / "new", [upper, lower]) as shown:
            wanted = _as_git_sees(shown)
        text = _patch(_diff([upper], [lower], contents=BOTH))
        target = place / "target"
        shutil.copytree(lower, target, symlinks=True, ignore=_special)
        if text:
            command = ["git", "apply", "--whitespace=nowarn", "-"]
            subprocess.run(command, cwd=target, input=text.encode(), check=True, env={**os.environ, "GIT_DIR": "/nowhere"})
        assert _as_git_sees(target) == wanted


def _special(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if Path(directory, name).is_fifo()]


def _as_git_sees(root: Path) -> dict[str, tuple[object, ...]]:
    """Files and links; of rights, whether a file may be executed."""
    found: dict[str, tuple[object, ...]] = {}
    for path, (mode, _, _, _, held) in seen(root).items():
        assert isinstance(mode, int)
        if stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            found[path] = (stat.S_IFMT(mode), bool(mode & stat.S_IXUSR), held)
    return found


def test_a_file_written_again_with_what_it_held_is_no_change(tmp_path: Path) -> None:
    for name in ("base", "top"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same").write_bytes(b"x" * 3_000_000)
    assert _diff([tmp_path / "top"], [tmp_path / "base"]) == []
    with (tmp_path / "top/same").open("r+b") as file:
        file.seek(2_500_000)
        file.write(b"y")
    (found,) = _diff([tmp_path / "top"], [tmp_path / "base"])
    assert (found.path, found.kind) == (b"same", "modified")


def test_what_goes_while_it_is_looked_at_is_gone(tmp_path: Path) -> None:
    for name in ("base", "top"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stays").write_text(name)
    (tmp_path / "base/goes").write_text("before")
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            (tmp_path / "top/goes").write_text("after")
            (tmp_path / "top/goes").unlink()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(1000):
            found = {one.path: one.kind for one in _diff([tmp_path / "top"], [tmp_path / "base"], contents=BOTH)}
            assert found.pop(b"goes", "deleted") in ("deleted", "modified")
            assert found == {b"stays": "modified"}
    finally:
        over.set()
        thread.join()


def test_contents_beyond_the_bound_are_refused_and_paths_are_not(tmp_path: Path) -> None:
    for name in ("base", "top"):
        (tmp_path / name).mkdir()
    for number in range(3):
        (tmp_path / f"top/{number}").write_bytes(b"x" * 400)
    assert len(_diff([tmp_path / "top"], [tmp_path / "base"], most_bytes=1000)) == 3
    with pytest.raises(whole.TreeError, match="more than 1,000 bytes"):
        _diff([tmp_path / "top"], [tmp_path / "base"], contents=BOTH, most_bytes=1000)
    # What nobody asked for is not in the bound.
    assert {one.after for one in _diff([tmp_path / "top"], [tmp_path / "base"], contents=("before",), most_bytes=1000)} == {
        None
    }

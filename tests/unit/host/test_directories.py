"""A sandbox's directory goes, whatever its programs did to it; what its links lead to stays as it is."""

import os
import shutil
from pathlib import Path

import pytest

from excise.host.directories import remove


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove what has no rights")
def test_a_directory_without_rights_is_removed_all_the_same(tmp_path: Path) -> None:
    closed = tmp_path / "box" / "closed" / "deeper"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0)
    closed.parent.chmod(0)
    remove(str(tmp_path / "box"))
    assert not (tmp_path / "box").exists()


def test_what_a_link_leads_to_is_neither_removed_nor_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").touch()
    box = tmp_path / "box"
    (box / "work").mkdir(parents=True)
    (box / "link").symlink_to(outside)
    if os.geteuid() == 0:
        # Root's first attempt would succeed; the second is what must not follow the link.
        whole = shutil.rmtree
        calls: list[str] = []

        def second_time_lucky(path: str, *, ignore_errors: bool) -> None:
            calls.append(path)
            if len(calls) > 1:
                whole(path, ignore_errors=ignore_errors)

        monkeypatch.setattr("excise.host.directories.shutil.rmtree", second_time_lucky)
    else:
        (box / "work" / "x").mkdir()
        (box / "work").chmod(0)
    remove(str(box))
    assert not box.exists()
    assert outside.stat().st_mode & 0o777 == 0o755
    assert (outside / "file").exists()

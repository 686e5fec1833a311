"""Users are looked up in the image, never on the host."""

from pathlib import Path

import pytest

from excise.errors import SpecError
from excise.storage.users import numbers


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nbroken\nada:x:1815:1852::/:/bin/sh\nodd:x:no:1::/:\n")
    (tmp_path / "etc/group").write_text("root:x:0:\ncrew:x:77:ada\n")
    return tmp_path


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("root", (0, 0)),
        ("ada", (1815, 1852)),
        ("1815", (1815, 1852)),
        ("ada:crew", (1815, 77)),
        ("ada:5", (1815, 5)),
        ("4242", (4242, 4242)),
        ("4242:crew", (4242, 77)),
    ],
)
def test_a_user_is_found_by_name_or_number(root: Path, user: str, expected: tuple[int, int]) -> None:
    assert numbers(user, root) == expected


@pytest.mark.parametrize("user", ["nobody-here", "odd", "ada:nowhere", ""])
def test_a_user_the_image_does_not_have_is_one_sentence(root: Path, user: str) -> None:
    with pytest.raises(SpecError, match="the image has no"):
        numbers(user, root)


def test_a_link_is_not_followed_to_the_hosts_file(root: Path) -> None:
    (root / "etc/passwd").unlink()
    (root / "etc/passwd").symlink_to("/etc/passwd")
    with pytest.raises(SpecError):
        numbers("root", root)
    assert numbers("0", root) == (0, 0)

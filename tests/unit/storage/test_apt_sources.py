"""The release comes from this machine's own mirrors, and third parties' packages do not come with it."""

from pathlib import Path

from excise.storage.apt_sources import sources


def test_one_line_sources_are_reduced_to_the_release(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb http://commented bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://mirror/debian bookworm main contrib # ours\n"
        "deb-src http://mirror/debian bookworm main\n"
        "deb http://mirror/security bookworm-security main\n"
        "deb http://mirror/debian trixie main\n"
    )
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/docker.list").write_text("deb https://vendor/debian bookworm stable\n")
    (tmp_path / "sources.list.d/old.list.disabled").write_text("deb http://disabled bookworm main\n")
    assert sources("bookworm", tmp_path) == {
        "base.list": "deb [arch=amd64 signed-by=/k.gpg] http://mirror/debian bookworm main\n"
        "deb http://mirror/security bookworm-security main\n"
    }


def test_stanzas_are_reduced_to_the_release(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "Types: deb deb-src\n# a comment\nURIs: http://mirror/debian\nSuites: bookworm bookworm-updates bookworm-backports\n"
        "Components: main non-free\nSigned-By:\n -----BEGIN PGP-----\n .\n abc\n\n"
        "Types: deb\nURIs: http://off\nSuites: bookworm\nComponents: main\nEnabled: no\n\n"
        "Types: deb\nURIs: http://vendor\nSuites: nodistro\nComponents: main\n"
    )
    assert sources("bookworm", tmp_path) == {
        "base.sources": "Types: deb\nUris: http://mirror/debian\nSuites: bookworm bookworm-updates\nComponents: main\n"
        "Signed-By: \n -----BEGIN PGP-----\n .\n abc\n"
    }


def test_a_machine_with_another_release_has_none(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://archive.ubuntu.com/ubuntu noble main\n")
    assert sources("bookworm", tmp_path) == {}
    assert sources("bookworm", tmp_path / "nothing") == {}

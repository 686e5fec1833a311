import base64
import functools
import hashlib
import threading
from collections.abc import Generator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pip._internal.models.index import PyPI

from excise.errors import SpecError, SubstrateError
from excise.workloads.index import Archive, Settings, fetch, settings

DATA = b"an archive"
ARCHIVE = Archive("tiny", "1.0", hashlib.sha256(DATA).hexdigest())
LOGIN = "Basic " + base64.b64encode(b"me:p@ss").decode()


class _Index(SimpleHTTPRequestHandler):
    """HTML only, and only with a login where the path begins with /closed."""

    def do_GET(self) -> None:
        if self.path.startswith("/closed") and self.headers.get("Authorization") != LOGIN:
            self.send_error(401)
        else:
            super().do_GET()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def index(tmp_path: Path) -> Generator[str]:
    for name in ("open", "closed"):
        page = tmp_path / name / "simple" / "tiny"
        page.mkdir(parents=True)
        (page / "index.html").write_text(
            '<!DOCTYPE html><a href="../../files/tiny-0.9.tar.gz">tiny-0.9.tar.gz</a>\n'
            '<A HREF="../../files/tiny-1.0.tar.gz#sha256=00">tiny-1.0.tar.gz</A>'
        )
        (tmp_path / name / "files").mkdir()
        (tmp_path / name / "files" / "tiny-1.0.tar.gz").write_bytes(DATA)
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Index, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_it_reads_a_page_that_is_only_html(index: str) -> None:
    assert fetch(ARCHIVE, Settings(indexes=(f"http://{index}/open/simple/",))) == DATA


def test_it_logs_in_as_the_address_says(index: str) -> None:
    assert fetch(ARCHIVE, Settings(indexes=(f"http://me:p%40ss@{index}/closed/simple",))) == DATA


def test_a_refusal_shows_no_password(index: str) -> None:
    with pytest.raises(SubstrateError, match="Unauthorized") as refused:
        fetch(ARCHIVE, Settings(indexes=(f"http://me:wrong@{index}/closed/simple",)))
    assert "wrong" not in str(refused.value)


def test_the_next_index_is_asked(index: str) -> None:
    assert fetch(ARCHIVE, Settings(indexes=(f"http://{index}/nowhere", f"http://{index}/open/simple"))) == DATA


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (
            Settings(indexes=("http://127.0.0.1:1/simple",)),
            "refused.*; connect to a package index, or set PIP_",
        ),
        (Settings(indexes=("file:///etc",)), "file:// is not an index"),
    ],
)
def test_without_an_index_it_says_what_to_do(where: Settings, sentence: str) -> None:
    with pytest.raises(SubstrateError, match=sentence):
        fetch(ARCHIVE, where)


def test_no_index_at_all(index: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="pip here has no index; set PIP_INDEX_URL, or PIP_FIND_LINKS to its directory"):
        fetch(ARCHIVE, Settings(indexes=()))
    (tmp_path / ARCHIVE.file).write_bytes(DATA)
    assert fetch(ARCHIVE, Settings(indexes=(), folders=(tmp_path,))) == DATA


def test_a_version_that_is_not_listed(index: str) -> None:
    with pytest.raises(SubstrateError, match=r"tiny-2.0.tar.gz cannot be had .*it does not list the file"):
        fetch(Archive("tiny", "2.0", ""), Settings(indexes=(f"http://{index}/open/simple",)))


def test_other_bytes_are_refused(index: str) -> None:
    with pytest.raises(SpecError, match="is another file: its sha256 is"):
        fetch(Archive("tiny", "1.0", "0" * 64), Settings(indexes=(f"http://{index}/open/simple",)))


def test_settings_are_those_of_pip(tmp_path: Path) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(
        f"[global]\nindex-url = https://one.example/simple\nfind-links = {tmp_path}\n"
        "extra-index-url =\n    https://two.example/simple\n    https://three.example/simple\n"
    )
    environ = {"PIP_CONFIG_FILE": str(config), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    found = settings(environ)
    assert found.indexes == ("https://one.example/simple", "https://two.example/simple", "https://three.example/simple")
    assert found.folders == (tmp_path,)
    over = settings({**environ, "PIP_INDEX_URL": "https://four.example/simple"})
    assert over.indexes[0] == "https://four.example/simple"
    assert settings({**environ, "PIP_NO_INDEX": "1"}).indexes == ()


def test_without_settings_it_is_the_index_that_pip_has_built_in(tmp_path: Path) -> None:
    environ = {"PIP_CONFIG_FILE": "/dev/null", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    (index,) = settings(environ).indexes
    assert index == PyPI.simple_url

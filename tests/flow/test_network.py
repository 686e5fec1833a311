"""pip, git and npm in a sandbox that has loopback only, against servers that the test makes: listed, refused, cut off."""

import base64
import functools
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pip
import pytest

from excise import SandboxLost, Shell, Spec, Step
from excise.spec import Allow, Mount
from excise.sync import Sandbox

HOST = "127.0.0.2"
"""An address of this host's that no_proxy does not name: programs ask the proxy for it."""
PIP = Mount(str(Path(pip.__file__).parent), "/mnt/pip/pip")
PIP_DOWNLOAD = "PYTHONPATH=/mnt/pip python3 -m pip --disable-pip-version-check download --no-deps --no-cache-dir -d got"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Nobody wants to know."""


@contextmanager
def serving(directory: Path) -> Generator[int]:
    """The files of a directory, over HTTP; the port."""
    with ThreadingHTTPServer((HOST, 0), functools.partial(_Quiet, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def site(tmp_path: Path) -> Generator[int]:
    """A server with a git repository, a package index and an npm registry."""
    _repository(tmp_path)
    _index(tmp_path)
    with serving(tmp_path) as port:
        _registry(tmp_path, port)
        yield port


def _repository(place: Path) -> None:
    """One that is only files: git's "dumb" protocol."""
    git = ["git", "-C", str(place), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q", "work"], ["-C", "work", "commit", "-q", "--allow-empty", "-m", "start"]):
        subprocess.run([*git, *words], check=True, timeout=30)
    subprocess.run([*git, "clone", "-q", "--bare", "work", "repo.git"], check=True, timeout=30)
    subprocess.run([*git, "-C", "repo.git", "update-server-info"], check=True, timeout=30)


def _index(place: Path) -> None:
    folder = place / "simple" / "tiny"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    (folder / "index.html").write_text('<a href="tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>')


def _registry(place: Path, port: int) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        data = json.dumps({"name": "tiny-js", "version": "1.0.0"}).encode()
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    (place / "tiny-js-1.0.0.tgz").write_bytes(packed.getvalue())
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    dist = {"tarball": f"http://{HOST}:{port}/tiny-js-1.0.0.tgz", "integrity": integrity}
    version = {"name": "tiny-js", "version": "1.0.0", "dist": dist}
    record = {"name": "tiny-js", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (place / "tiny-js").write_text(json.dumps(record))


@pytest.fixture
def namespace(runs_here: Callable[[str], None]) -> None:
    runs_here("namespace")


def listed(port: int, **more: Any) -> Spec:
    return Spec(network=Allow((HOST,), (port,)), **more)


@pytest.mark.usefixtures("namespace")
def test_git_clones_from_what_is_listed_and_from_nowhere_else(site: int, tmp_path: Path) -> None:
    with serving(tmp_path) as other, Sandbox("namespace", listed(site)) as box:
        assert box.run(f"git clone -q http://{HOST}:{site}/repo.git got && git -C got log --format=%s").text == "start\n"
        refused = box.run(f"git clone -q http://{HOST}:{other}/repo.git other")
        assert not refused.ok
        assert "403" in refused.text
        direct = box.run(f"git clone -q http://{HOST}:{site}/repo.git direct", env={"http_proxy": ""})
        assert not direct.ok


@pytest.mark.usefixtures("namespace")
def test_pip_downloads_and_says_why_it_may_not(site: int) -> None:
    with Sandbox("namespace", listed(site, mounts=(PIP,))) as box:
        index = f"--index-url http://{HOST}:{site}/simple --trusted-host {HOST}"
        seen = box.run(f"{PIP_DOWNLOAD} {index} tiny")
        assert seen.ok, seen.text
        assert [entry.name for entry in box.list("got")] == ["tiny-1.0-py3-none-any.whl"]
        refused = box.run(f"{PIP_DOWNLOAD} --retries 1 --index-url https://packages.example:{site}/simple tiny")
        assert not refused.ok
        assert f"403 excise: packages.example:{site}: the host is not listed; add it to Allow(hosts, ports)" in refused.text


@pytest.mark.usefixtures("namespace")
def test_npm_installs(site: int, must_work: Callable[[str, str], None]) -> None:
    with Sandbox("namespace", listed(site)) as box:
        if not box.run("npm --version").ok:
            must_work("npm", "the image has none")
        seen = box.run(f"HOME=$PWD npm install --no-audit --no-fund --registry http://{HOST}:{site}/ tiny-js")
        assert seen.ok, seen.text
        assert b'"tiny-js"' in box.read("node_modules/tiny-js/package.json")


@pytest.mark.usefixtures("namespace")
def test_a_real_index(must_work: Callable[[str, str], None], tmp_path: Path) -> None:
    """Over TLS, by names that are looked up on the host's side: whatever index pip here is configured with."""
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-cache-dir", "-d"]
    wanted = "iniconfig==2.0.0"
    env = {name: value for name, value in os.environ.items() if name != "PIP_FIND_LINKS"}
    asked = subprocess.run(
        [*argv, str(tmp_path), "-v", wanted], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    if asked.returncode != 0:
        must_work("index", "pip here downloads nothing")
    configured = {name: value for name, value in env.items() if name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")}
    certificates = Mount("/etc/ssl/certs", "/mnt/certs")
    configured["PIP_CERT"] = "/mnt/certs/ca-certificates.crt"
    spec = Spec(network="open", mounts=(PIP, certificates), env=configured)
    with Sandbox("namespace", spec) as box:
        seen = box.run(f"{PIP_DOWNLOAD} {wanted}")
        assert seen.ok, seen.text
        assert [entry.name for entry in box.list("got")] == ["iniconfig-2.0.0-py3-none-any.whl"]


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("host", ["169.254.169.254", "127.0.0.2", "10.0.0.1", "localhost", "[::1]", "0.0.0.0"])  # noqa: S104
def test_open_is_not_open_to_what_only_the_host_can_reach(host: str, tmp_path: Path) -> None:
    fetch = f"import urllib.request as u; print(u.urlopen('http://{host}:%d/', timeout=20).status)"
    with serving(tmp_path) as port, Sandbox("namespace", Spec(network="open")) as box:
        # Through the proxy, whatever no_proxy says: that is how an adversary would ask.
        seen = box.run(["python3", "-c", fetch % port], env={"no_proxy": "", "NO_PROXY": ""})
        assert not seen.ok
        assert "HTTP Error 403: excise: " in seen.text


@pytest.mark.usefixtures("namespace")
def test_the_steps_have_a_network_and_the_run_has_none(site: int) -> None:
    url = f"http://{HOST}:{site}/repo.git"
    waiting = "(git clone -q {url} late; touch late-done) >/dev/null 2>&1 &"
    steps = (
        Step("clone", (Shell(f"git clone -q {url} got"),)),
        Step("leaves something", (Shell(f"(while test ! -e go; do sleep 0.02; done; {waiting.format(url=url)}) &"),)),
    )
    with Sandbox("namespace", Spec(network="none", build_network=Allow((HOST,), (site,)), steps=steps)) as box:
        assert box.run("git -C got log --format=%s").text == "start\n"
        assert not box.run(f"git clone -q {url} again").ok
        assert "proxy" not in box.run(["env"]).text.lower()
        assert not box.run(f"git clone -q {url} again", env={"http_proxy": "http://127.0.0.1:3128"}).ok
        box.run("touch go; while test ! -e late-done; do sleep 0.02; done", timeout_s=20)
        assert "late" not in {entry.name for entry in box.list(".")}


@pytest.mark.usefixtures("namespace")
def test_no_network_means_no_proxy_either() -> None:
    with Sandbox("namespace", Spec()) as box:
        assert "proxy" not in box.run(["env"]).text.lower()
        assert box.run("cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A '").stdout == b"0\n"


@pytest.mark.usefixtures("namespace")
def test_a_killed_proxy_is_a_lost_sandbox_and_never_a_failed_command(site: int) -> None:
    with Sandbox("namespace", listed(site)) as box:
        assert box.run(f"git ls-remote http://{HOST}:{site}/repo.git").ok
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            if _is_our_proxy(entry.parent):
                os.kill(int(entry.parent.name), signal.SIGKILL)
        with pytest.raises(SandboxLost, match="the proxy between this sandbox and the network has ended"):
            box.run("sleep 1000")


def _is_our_proxy(process: Path) -> bool:
    try:
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == os.getpid() and b"excise.network.proxy" in (process / "cmdline").read_bytes()
    except OSError:
        return False

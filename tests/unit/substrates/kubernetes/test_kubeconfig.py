"""A kubeconfig is read as kubectl reads it; what is not understood is refused by name."""

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from excise.errors import SpecError, SubstrateError
from excise.substrates.kubernetes.credentials import Credentials
from excise.substrates.kubernetes.kubeconfig import Access, Identity, Plugin, _in_pod, resolve


def config(name: str = "one", *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}:6443", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {"token": f"token-{name}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": f"ns-{name}"}}],
    }


def written(path: Path, held: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(held))
    return path


def test_the_home_directory_s_is_the_default(tmp_path: Path) -> None:
    written(tmp_path / ".kube" / "config", config())
    found = resolve(environ={"HOME": str(tmp_path)})
    assert (found.server, found.namespace, found.identity.token) == ("https://one:6443", "ns-one", "token-one")


def test_several_are_merged_and_the_first_word_counts(tmp_path: Path) -> None:
    first, second = config("one"), config("two")
    second["clusters"].append({"name": "one", "cluster": {"server": "https://overruled:1"}})
    paths = [written(tmp_path / "a", first), tmp_path / "missing", written(tmp_path / "b", second)]
    environ = {"KUBECONFIG": os.pathsep.join(map(str, paths))}
    assert resolve(environ=environ).server == "https://one:6443"
    assert resolve(context="two", environ=environ).server == "https://two:6443"


def test_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    user = {"client-certificate": "pki/me.crt", "client-key": "/abs/me.key", "tokenFile": "token"}
    path = written(tmp_path / "deep" / "config", config(user=user, cluster={"certificate-authority": "ca.crt"}))
    found = resolve(str(path))
    assert found.authority == tmp_path / "deep" / "ca.crt"
    assert found.identity.certificate == tmp_path / "deep" / "pki" / "me.crt"
    assert found.identity.key == Path("/abs/me.key")
    assert found.identity.token_file == tmp_path / "deep" / "token"


def test_paths_of_a_relative_kubeconfig_stay_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "config", config(user={"tokenFile": "token"}))
    monkeypatch.chdir(tmp_path)
    assert resolve("config").identity.token_file == tmp_path / "token"


def test_data_counts_more_than_a_file(tmp_path: Path) -> None:
    cluster = {"certificate-authority": "ca.crt", "certificate-authority-data": base64.b64encode(b"PEM").decode()}
    assert resolve(str(written(tmp_path / "config", config(cluster=cluster)))).authority == b"PEM"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"users": [{"name": "one", "user": {"auth-provider": {"name": "gcp"}}}]}, "auth-provider 'gcp'"),
        ({"users": [{"name": "one", "user": {"exec": {"apiVersion": "v0", "command": "x"}}}]}, "apiVersion 'v0'"),
        ({"current-context": ""}, "no current-context"),
        ({"current-context": "other"}, "no context 'other'; there are: one"),
        ({"clusters": []}, "no cluster 'one'"),
        ({"clusters": [{"name": "one", "cluster": {"server": "host"}}]}, "https://host:6443"),
        ({"clusters": [{"name": "one", "cluster": {"server": "https://h", "certificate-authority-data": "%"}}]}, "base64"),
        ({"clusters": [{"name": "one", "cluster": {"server": "https://h", "proxy-url": "socks5://p"}}]}, "proxy-url"),
        ({"clusters": [{"cluster": {}}]}, "missing required field `name` - at `$.clusters[0]`"),
        ({"clusters": [{"name": "one", "cluster": "text"}]}, "`$.clusters[0].cluster`"),
        ({"clusters": [{"name": "one", "cluster": {"server": 5}}]}, "`$.clusters[0].cluster.server`"),
        ({"contexts": 5}, "`$.contexts`"),
        ({"users": [{"name": "one", "user": {"exec": {"env": ["x"]}}}]}, "`$.users[0].user.exec.env[0]`"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = written(tmp_path / "config", config() | change)
    with pytest.raises(SpecError) as refused:
        resolve(str(path))
    assert words in str(refused.value)


@pytest.mark.parametrize("text", [b"{", b"- a\n- b\n", b"\tx", b"\xff\xfe"])
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "config"
    path.write_bytes(text)
    with pytest.raises(SpecError, match=str(path)):
        resolve(str(path))


def test_without_any_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="set KUBECONFIG"):
        resolve(environ={"HOME": str(tmp_path)})
    with pytest.raises(SpecError, match="cannot be read"):
        resolve(str(tmp_path / "nowhere"))


def test_in_a_pod_the_service_account_is_who_we_are(tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert _in_pod(environ, tmp_path) is None
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("mine")
    found = _in_pod(environ, tmp_path)
    assert found is not None
    assert (found.server, found.namespace, found.identity.token_file) == ("https://[fd00::1]:443", "mine", tmp_path / "token")


def test_whom_to_act_as_goes_into_headers(tmp_path: Path) -> None:
    user = {"token": "t", "as": "jane", "as-groups": ["a", "b"], "as-user-extra": {"reason": ["x"]}}
    found = resolve(str(written(tmp_path / "config", config(user=user))))
    assert found.identity.headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-reason", "x"),
    )


def test_no_credential_is_in_a_representation(tmp_path: Path) -> None:
    found = resolve(str(written(tmp_path / "config", config(user={"token": "hush", "username": "u", "password": "pass"}))))
    assert "hush" not in repr(found)
    assert "pass" not in repr(found)


# ---- credentials


def shown(access: Access) -> dict[str, str]:
    async def main() -> dict[str, str]:
        return dict((await Credentials(access).current()).headers)

    return asyncio.run(main())


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")

    async def main() -> list[str]:
        credentials = Credentials(Access(server="http://x", named_by="test", identity=Identity(token_file=path)))
        seen = [dict((await credentials.current()).headers)["Authorization"]]
        (tmp_path / "new").write_text("second")
        (tmp_path / "new").replace(path)
        return [*seen, dict((await credentials.current()).headers)["Authorization"]]

    assert asyncio.run(main()) == ["Bearer first", "Bearer second"]


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="token"):
        shown(Access(server="http://x", named_by="test", identity=Identity(token_file=tmp_path / "token")))


def plugin(tmp_path: Path, text: str, **more: Any) -> Access:
    path = tmp_path / "plugin.py"
    path.write_text(text)
    made = Plugin(command=sys.executable, args=(str(path),), **more)
    return Access(server="http://x", named_by="test", identity=Identity(plugin=made))


SAYS = """
import json, os, pathlib
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
with open(os.environ["COUNT"], "a") as count: count.write("x")
status = {"token": os.environ["SAY"] + info["spec"].get("cluster", {}).get("server", "")} | json.loads(os.environ["MORE"])
print(json.dumps({"kind": "ExecCredential", "apiVersion": info["apiVersion"], "status": status}))
"""


@pytest.mark.parametrize(("until", "runs"), [("2099-01-01T00:00:00Z", 1), ("2020-01-01T00:00:00Z", 2)])
def test_an_exec_plugin_is_run_until_its_credential_is_over(tmp_path: Path, until: str, runs: int) -> None:
    count = tmp_path / "count"
    env = {"SAY": "word-", "COUNT": str(count), "MORE": f'{{"expirationTimestamp": "{until}"}}'}
    access = plugin(tmp_path, SAYS, env=env, cluster={"server": "https://there"})

    async def main() -> str:
        credentials = Credentials(access)
        await asyncio.gather(credentials.current(), credentials.current())
        return dict((await credentials.current()).headers)["Authorization"]

    assert asyncio.run(main()) == "Bearer word-https://there"
    assert len(count.read_text()) == runs + (until < "2021")


def test_an_exec_plugin_is_run_again_when_its_credential_is_refused(tmp_path: Path) -> None:
    count = tmp_path / "count"
    access = plugin(tmp_path, SAYS, env={"SAY": "w", "COUNT": str(count), "MORE": "{}"})

    async def main() -> None:
        credentials = Credentials(access)
        await credentials.current()
        assert credentials.refused()
        await credentials.current()

    asyncio.run(main())
    assert count.read_text() == "xx"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise SystemExit('sign in first')", "sign in first"),
        ("print('hush')", "printed no ExecCredential"),
        ("print('{\"status\": {}}')", "neither a token nor a certificate"),
    ],
)
def test_an_exec_plugin_that_fails_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SubstrateError) as refused:
        shown(plugin(tmp_path, text))
    assert words in str(refused.value)
    assert "hush" not in str(refused.value)


def test_an_exec_plugin_that_is_not_there_is_named_with_its_hint(tmp_path: Path) -> None:
    made = Plugin(command=str(tmp_path / "none"), hint="install it so")
    with pytest.raises(SpecError, match="install it so"):
        shown(Access(server="http://x", named_by="test", identity=Identity(plugin=made)))


def test_an_exec_plugin_that_hangs_is_given_up_with_all_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    made = Plugin(command="sh", args=("-c", f"sleep 300 & echo $! > {pid}.part; mv {pid}.part {pid}; wait"))

    async def scenario() -> None:
        showing = asyncio.ensure_future(
            Credentials(Access(server="http://x", named_by="test", identity=Identity(plugin=made))).current()
        )
        while not pid.exists():
            await asyncio.sleep(0.01)
        showing.cancel()
        await asyncio.wait([showing], timeout=20)
        assert showing.cancelled()

    asyncio.run(scenario())
    started = Path(f"/proc/{pid.read_text().strip()}/cmdline")
    assert not started.exists() or started.read_bytes() == b""  # dead, and maybe not yet reaped


def test_certificates_that_do_not_load_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="do not load"):
        shown(Access(server="https://x", named_by="test", authority=b"no PEM"))
    with pytest.raises(SpecError, match="do not load"):
        shown(Access(server="https://x", named_by="test", identity=Identity(certificate=tmp_path / "none")))

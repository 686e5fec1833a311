"""A name means the registry, path and tag that Docker means by it."""

import pytest

from excise.errors import SpecError
from excise.storage.oci.reference import HUB, parse

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("name", "registry", "path", "tag", "digest"),
    [
        ("python", HUB, "library/python", "latest", None),
        ("python:3.12", HUB, "library/python", "3.12", None),
        ("owner/name", HUB, "owner/name", "latest", None),
        ("registry.example/name:1", "registry.example", "name", "1", None),
        ("registry.example:5000/a/b__c", "registry.example:5000", "a/b__c", "latest", None),
        ("localhost/name", "localhost", "name", "latest", None),
        (f"registry.example/name@{DIGEST}", "registry.example", "name", None, DIGEST),
        (f"registry.example/name:1@{DIGEST}", "registry.example", "name", "1", DIGEST),
    ],
)
def test_parts(name: str, registry: str, path: str, tag: str | None, digest: str | None) -> None:
    found = parse(name)
    assert (found.registry, found.path, found.tag, found.digest) == (registry, path, tag, digest)


@pytest.mark.parametrize(
    "name", ["", "Upper", "a b", "a:", "a:b:c", "a@sha256:1", "a/../b", "http://a.example/b", "a.example/", "-a", "a//b"]
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="is no image"):
        parse(name)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("127.0.0.1:5000/a", "http://127.0.0.1:5000"),
        ("[::1]:5000/a", "http://[::1]:5000"),
        ("localhost:5000/a", "http://localhost:5000"),
        ("registry.example/a", "https://registry.example"),
        ("127.0.0.1.example/a", "https://127.0.0.1.example"),
    ],
)
def test_only_this_machine_is_spoken_to_without_tls(name: str, address: str) -> None:
    assert parse(name).address == address

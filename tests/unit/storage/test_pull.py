"""Images come from registries whole or not at all; what goes wrong is told with a remedy, and the store stays whole."""

import asyncio
import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from excise.errors import ExciseError, SpecError, SubstrateError
from excise.storage import collect, store
from excise.storage.image import hold, resolve
from excise.storage.layers.store import LayerStore
from excise.storage.oci import pull
from oci_image import FORMATS, MACHINE, Built, build, digest, entry, index, tar
from strange_registry import Handler, Registry, serving

GZIP = FORMATS[:1]


@pytest.fixture
def registry(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    with serving() as made:
        yield made
    if home.exists():
        assert not [*home.glob("layers/.*"), *home.glob("images/.*")], "nothing half-made is left"


def image_of(*names: str, size: int = 1 << 20) -> Built:
    return build([tar(entry(name, (name.encode() * size)[:size])) for name in names], compress=FORMATS[2:], Env=["A=b"])


def pulled(*names: str, stall_s: float = 20.0, **options: Any) -> tuple[pull.Pulled, ...]:
    return asyncio.run(pull.pull(names, stall_s=stall_s, **options))


def failure(name: str, stall_s: float = 20.0) -> ExciseError:
    (one,) = pulled(name, stall_s=stall_s)
    assert one.error is not None
    assert "\n" not in str(one.error)
    return one.error


def login(tmp_path: Path, registry: Registry, user: str = "joe:secret") -> None:
    auth = {"auth": base64.b64encode(user.encode()).decode()}
    (tmp_path / "docker").mkdir(exist_ok=True)
    (tmp_path / "docker/config.json").write_text(json.dumps({"auths": {registry.host: auth}}))


def test_it_comes_and_is_used_by_its_name(registry: Registry) -> None:
    name = registry.put(image_of("a", "b"), "1")
    (one,) = pulled(name)
    assert one.account is not None
    assert (one.account.layers, one.account.layers_there) == (2, 0)
    assert one.account.read_bytes == one.account.total_bytes
    image = asyncio.run(resolve(name))
    assert image.env["A"] == "b"
    assert (image.root / "a").stat().st_size == 1 << 20


def test_a_second_image_brings_only_what_is_new(registry: Registry) -> None:
    first, second = registry.put(image_of("a", "b", "c"), "1"), registry.put(image_of("a", "b", "d"), "2")
    pulled(first)
    before = len(registry.asked)
    (one,) = pulled(second)
    assert one.account is not None
    assert (one.account.layers, one.account.layers_there) == (3, 2)
    assert sum("/blobs/" in path for path in registry.asked[before:]) == 2  # its configuration, and one layer


def test_two_at_once_bring_what_they_share_once(registry: Registry) -> None:
    names = registry.put(image_of("a", "b", "c"), "1"), registry.put(image_of("a", "b", "d"), "2")
    assert all(one.error is None for one in pulled(*names, jobs=4))
    layers = [path for path in registry.asked if "/blobs/" in path]
    assert len(layers) == len(set(layers)) == 2 + 4


def test_an_index_leads_to_the_image_for_this_machine(registry: Registry) -> None:
    ours, other = image_of("ours"), image_of("other")
    registry.put(other, "other")
    registry.put(ours, "ours")
    registry.manifests["many"] = index((other.manifest, "vax"), (ours.manifest, MACHINE))
    pulled(f"{registry.host}/made:many")
    assert (asyncio.run(resolve(f"{registry.host}/made:many")).root / "ours").exists()
    registry.manifests["few"] = index((other.manifest, "vax"))
    assert f"no image for linux/{MACHINE}; it has: linux/vax" in str(failure(f"{registry.host}/made:few"))


def test_a_moved_tag_means_the_new_image_after_the_next_pull(registry: Registry) -> None:
    name = registry.put(image_of("old"), "1")
    pulled(name)
    registry.put(image_of("new"), "1")
    assert (asyncio.run(resolve(name)).root / "old").exists()
    pulled(name)
    assert (asyncio.run(resolve(name)).root / "new").exists()
    gone = asyncio.run(collect.tidy(None))
    assert (len(gone.images), len(gone.layers)) == (1, 1)


# ---- who we are


@pytest.mark.parametrize("guard", [Handler.demands_token, Handler.demands_password])
def test_the_docker_configuration_has_the_credentials(registry: Registry, tmp_path: Path, guard: object) -> None:
    registry.guard = guard  # pyright: ignore[reportAttributeAccessIssue]
    name = registry.put(image_of("a"), "1")
    assert f"run `docker login {registry.host}`" in str(failure(name))
    login(tmp_path, registry, "joe:wrong")
    refusal = failure(name)
    assert isinstance(refusal, SpecError)
    assert "refused the credentials" in str(refusal)
    assert "wrong" not in str(refusal)
    login(tmp_path, registry)
    (one,) = pulled(name)
    assert one.error is None


def test_a_credential_helper_is_asked_and_a_missing_one_named(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.guard = Handler.demands_password
    name = registry.put(image_of("a"), "1")
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/config.json").write_text(json.dumps({"credHelpers": {registry.host: "made-up"}}))
    assert "install docker-credential-made-up" in str(failure(name))
    helper = tmp_path / "docker-credential-made-up"
    helper.write_text('#!/bin/sh\ncat >/dev/null; echo \'{"Username": "joe", "Secret": "secret"}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (one,) = pulled(name)
    assert one.error is None


# ---- what goes wrong


def test_a_missing_tag_is_a_mistake_of_the_spec(registry: Registry) -> None:
    registry.put(image_of("a"), "1")
    refusal = failure(f"{registry.host}/made:2")
    assert isinstance(refusal, SpecError)
    assert f"has no image {registry.host}/made:2: check its name and tag" in str(refusal)


@pytest.mark.usefixtures("home")
def test_nobody_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    refusal = failure("127.0.0.1:1/made:1")
    assert isinstance(refusal, SubstrateError)
    assert "nothing answers at http://127.0.0.1:1" in str(refusal)


def test_a_connection_that_breaks_is_taken_up_where_it_broke(registry: Registry) -> None:
    image = image_of("a", size=3 << 20)
    name = registry.put(image, "1")
    starts: list[int] = []

    def breaks(handler: Handler, data: bytes, at: int) -> bool:
        if data != image.blobs[0]:
            return False
        starts.append(at)
        if len(starts) == 3:
            return False
        handler.begin(206 if at else 200, data, at, at + (1 << 20))
        handler.reset() if len(starts) == 1 else handler.connection.close()
        handler.close_connection = True
        return True

    registry.misbehave = breaks
    (one,) = pulled(name)
    assert one.error is None
    assert len(starts) == 3
    assert 0 < starts[1] < starts[2] == starts[1] + (1 << 20)


def test_a_registry_without_ranges_is_read_again(registry: Registry) -> None:
    image = image_of("a", size=2 << 20)
    name = registry.put(image, "1")
    starts: list[int] = []

    def breaks(handler: Handler, data: bytes, at: int) -> bool:
        if data == image.blobs[0]:
            starts.append(at)
            handler.begin(200, data, 0, 1 << 20 if len(starts) == 1 else len(data))
            handler.close_connection = True
        return data == image.blobs[0]

    registry.misbehave = breaks
    (one,) = pulled(name)
    assert one.error is None
    assert len(starts) == 2


def test_one_that_breaks_off_each_time_is_given_up(registry: Registry) -> None:
    image = image_of("a", "b")
    name = registry.put(image, "1")

    def resets(handler: Handler, data: bytes, at: int) -> bool:
        if data == image.blobs[1]:
            handler.reset()
        return data == image.blobs[1]

    registry.misbehave = resets
    assert isinstance(failure(name), SubstrateError)
    assert store.found() == {}
    registry.misbehave = lambda *_: False
    before = len(registry.asked)
    (one,) = pulled(name)
    assert one.error is None
    assert sum("/blobs/" in path for path in registry.asked[before:]) <= 3


def test_one_that_says_nothing_is_given_up_after_its_time(registry: Registry) -> None:
    image = image_of("a")
    name = registry.put(image, "1")

    def stalls(handler: Handler, data: bytes, at: int) -> bool:
        if data == image.blobs[0]:
            handler.begin(200, data, 0, 1000)
            registry.ended.wait(60)
            handler.close_connection = True
        return data == image.blobs[0]

    registry.misbehave = stalls
    refusal = failure(name, stall_s=0.3)
    assert isinstance(refusal, SubstrateError)
    assert "said nothing for 0.3 s at byte" in str(refusal)


@pytest.mark.parametrize("how", ["other", "longer", "shorter"])
def test_bytes_that_are_not_the_digests_are_refused(registry: Registry, how: str) -> None:
    image = image_of("a")
    name = registry.put(image, "1")
    blob = image.blobs[0]
    other = image_of("b").blobs[0]
    registry.blobs[digest(blob)] = {"other": other, "longer": blob + b"x", "shorter": blob[:-1]}[how]
    assert ("not what was asked" if how == "longer" else "broke off" if how == "shorter" else "is not sha256:") in str(
        failure(name)
    )
    assert store.found() == {}
    assert LayerStore().held() == ()


def test_a_manifest_that_is_not_its_digest_is_refused(registry: Registry) -> None:
    image = image_of("a")
    registry.put(image, "1")
    wanted = digest(image.manifest)
    registry.manifests[wanted] = image_of("b").manifest
    assert f"a manifest that is not {wanted}" in str(failure(f"{registry.host}/made@{wanted}"))


# ---- the budget


def test_images_used_least_recently_make_room_but_none_that_is_held(registry: Registry) -> None:
    names = [registry.put(image_of(f"only-{number}"), str(number)) for number in range(4)]
    pulled(*names[:3])
    for number, name in enumerate(names[:3]):
        os.utime(asyncio.run(resolve(name)).root.parent / "image.json", (number, number))
    image, pin = asyncio.run(hold(names[0]))
    os.utime(image.root.parent / "image.json", (0, 0))
    with pin:
        (one,) = pulled(names[3], keep_bytes=3 << 20)
    assert one.error is None
    assert {store.find(key).name for key in store.found()} == {names[0], names[2], names[3]}  # pyright: ignore[reportOptionalMemberAccess]
    assert sum(layer.size_bytes for layer in LayerStore().held()) == 3 << 20
    with pytest.raises(ExciseError, match="excise image pull"):
        asyncio.run(resolve(names[1]))

"""The cluster of `make substrates`: it answers, its node is ready, and it holds the images that pods are made of."""

import json
import os
from collections.abc import Callable

import pytest

from cluster import api, images
from cluster.binaries import version
from cluster.places import NODE, Places, places
from excise.guest.programs import guest_image


@pytest.fixture
def here(must_work: Callable[[str, str], None]) -> Places:
    found = places()
    if not os.access(found.kubeconfig, os.R_OK):
        must_work("kubernetes", f"there is no {found.kubeconfig}: run `make substrates` as root")
    return found


def answer(here: Places, path: str) -> dict[str, object]:
    status, body = api.get(here.certificates, path)
    assert status == 200, body
    return json.loads(body)


def test_the_api_server_is_ready_and_of_the_version_that_was_built(here: Places) -> None:
    assert api.get(here.certificates, "/readyz") == (200, "ok")
    assert answer(here, "/version")["gitVersion"] == version()


def test_a_watch_shows_the_node_ready(here: Places) -> None:
    """Without a resource version: one that etcd is too old for is answered with an error."""
    assert api.wait(here.certificates, "/api/v1/nodes", NODE, api.node_is_ready, limit_s=20.0)


def test_the_node_holds_the_images(here: Places) -> None:
    held = images.there(here)
    for wanted in ("excise/pause:1", "excise/base:latest", guest_image()):
        assert [name for name in held if name.endswith(f"/{wanted}")], f"{wanted} is not among {held}: run `make substrates`"

"""The cluster of `make substrates`: it answers, its node is ready, and it holds the images that pods are made of."""

import json
import os
from collections.abc import Callable

import pytest

from cluster import api
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


def test_the_node_is_ready_and_holds_the_images(here: Places) -> None:
    node = answer(here, f"/api/v1/nodes/{NODE}")
    assert api.node_is_ready(node)
    status = node["status"]
    assert isinstance(status, dict)
    held = [name for image in status["images"] for name in image["names"]]
    for wanted in ("excise/pause:1", "excise/base:latest", guest_image()):
        assert [name for name in held if name.endswith(f"/{wanted}")], f"{wanted} is not among {held}: run `make substrates`"

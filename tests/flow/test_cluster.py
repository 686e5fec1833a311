"""The cluster of `make substrates`: it answers, its node is ready, and it holds the images that pods are made of."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import api, daemons, images
from cluster.binaries import version
from cluster.errors import ClusterError
from cluster.parts import Part
from cluster.places import NODE, Places, places
from cluster.records import Record
from excise.guest.programs import guest_image


@pytest.fixture
def here(must_work: Callable[[str, str], None]) -> Places:
    found = places()
    if not os.access(found.kubeconfig, os.R_OK):
        must_work("kubernetes", f"there is no {found.kubeconfig}: run `make substrates` as root")
    return found


@pytest.fixture
def apart(here: Places, tmp_path: Path) -> Places:
    """Directories of the test's own; control groups are those of the cluster that runs."""
    return Places(run=tmp_path / "run", data=tmp_path / "data")


def test_a_part_is_ready_when_it_says_so_and_is_started_once(apart: Places) -> None:
    script = """
import os, signal, socket
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"STATUS=soon", os.environ["NOTIFY_SOCKET"])
print("told nothing yet", flush=True)
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
signal.pause()
"""
    part = Part("part", (sys.executable, "-c", script), tells=True)
    assert daemons.ensure(part, apart)
    try:
        assert not daemons.ensure(part, apart)
        daemons.check(["part"], apart)
        first = Record.read(apart.records / "part.json")
        assert daemons.ensure(replace(part, command=(*part.command, "other")), apart), "other settings: another process"
        second = Record.read(apart.records / "part.json")
        assert first is not None
        assert second is not None
        assert (first.runs(), second.runs()) == (False, True)
    finally:
        daemons.stop("part", apart, 5.0)
    with pytest.raises(ClusterError, match="part ended"):
        daemons.check(["part"], apart)


def test_a_part_that_ends_instead_is_told_with_its_last_words(apart: Places) -> None:
    with pytest.raises(ClusterError, match=r"(?s)part ended; the end of .*part\.log is:\nno such flag"):
        daemons.ensure(Part("part", ("sh", "-c", "echo no such flag; exit 1"), tells=True), apart)
    assert not (apart.records / "part.json").exists()


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

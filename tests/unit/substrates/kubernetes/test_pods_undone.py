"""A create that is given up on while the API server does not answer: told in time, and its pod removed when it does."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from excise.errors import CreateError
from excise.spec import Spec
from excise.substrates.kubernetes import pods
from excise.substrates.kubernetes.guest import KubernetesGuestSubstrate
from excise.substrates.kubernetes.substrate import KubernetesSubstrate

SUBSTRATES = (KubernetesSubstrate, KubernetesGuestSubstrate)


class Server:
    """Knows pods by name; a pod that is posted is there, and nobody is told so before `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.posted = asyncio.Event()
        self.there: dict[str, Any] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1"})
        if request.method == "GET" and name in ("pods", "events"):
            if "watch" in request.query:
                await self.goes_on.wait()
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        made: dict[str, Any] = {}
        if request.method == "POST":
            made = json.loads(await request.read())
            made["metadata"] |= {"uid": "u", "resourceVersion": "2"}
            self.there[made["metadata"]["name"]] = made
            self.posted.set()
        await self.goes_on.wait()
        if request.method == "DELETE":
            self.there.pop(name, None)
            return web.json_response({"kind": "Status"})
        found = self.there.get(name) if request.method == "GET" else made
        return web.json_response(found or {}, status=200 if found else 404)


@pytest.mark.parametrize("kind", SUBSTRATES)
def test_a_create_is_told_in_time_and_undone_when_the_server_answers(
    kind: "type[KubernetesSubstrate | KubernetesGuestSubstrate]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "_UNDO_S", 0.1)

    async def scenario() -> None:
        server = Server()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}
        context = {"name": "x", "context": {"cluster": "c"}}
        path = tmp_path / "config"
        path.write_text(yaml.safe_dump({"current-context": "x", "clusters": [cluster], "contexts": [context]}))
        substrate = kind(kubeconfig=str(path), network_policy=False)
        try:
            async with asyncio.timeout(20):  # a request is given up after thirty
                with pytest.raises(CreateError, match="the API server has not answered"):
                    await substrate.create(Spec(), deadline_s=0.5, lease_s=60, labels={}, request_id="r")
            assert server.posted.is_set()
            assert len(server.there) == 1
            server.goes_on.set()
        finally:
            await substrate.close()
            await runner.cleanup()
        assert server.there == {}

    asyncio.run(scenario())

"""The guest as an ordinary process, without a sandbox around it, held against the contract: what is wrong here is its own."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from excise.contract.case import Case
from excise.contract.suite import CASES, Verdict, check
from excise.errors import SubstrateError
from excise.guest.carrier import SocketCarrier, pair
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.guest.programs import program
from excise.requests import EndsWithItsMaker, Requests
from excise.spec import Spec
from excise.substrate import Capabilities, Snapshot, require, unsupported

ENV = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}
ENDS_S = 20.0


class PlainSubstrate(EndsWithItsMaker[GuestHandle]):
    """A directory and a guest for each sandbox; it isolates nothing."""

    address = "plain"

    def __init__(self, guest: Path) -> None:
        self._guest = guest
        self._requests = Requests[GuestHandle](self.address)

    async def probe(self) -> Capabilities:
        return Capabilities(
            stream=True,
            sessions=True,
            pty=True,
            users=os.geteuid() == 0,
            ports=True,
            background=True,
            signals=True,
            guest_clock=True,
        )

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> GuestHandle:
        if isinstance(start, Snapshot):
            raise unsupported(self.address, "snapshots to start from")
        require(start, await self.probe(), self.address)
        return await self._requests.once(request_id, deadline_s, lambda: self._make(start))

    async def _make(self, spec: Spec) -> GuestHandle:
        place = Path(tempfile.mkdtemp(prefix="excise-plain-"))
        place.chmod(0o777)
        if spec.workdir is not None:
            Path(spec.workdir).mkdir(parents=True, exist_ok=True)
        ours, theirs = pair()
        with theirs:
            # Started without an await: there is nothing to clean up if the caller gives up meanwhile.
            process = subprocess.Popen([self._guest], stdin=theirs.fileno(), stdout=theirs.fileno(), cwd="/", env={})

        async def dispose() -> None:
            self._requests.forget(handle)
            await asyncio.to_thread(process.wait, ENDS_S)
            shutil.rmtree(place)
            if spec.workdir is not None and spec.workdir.startswith("/tmp/excise-"):
                shutil.rmtree(Path(spec.workdir).parent)

        handle = GuestHandle(
            Link(SocketCarrier(ours)),
            id=uuid.uuid4().hex,
            address=self.address,
            capabilities=await self.probe(),
            spec=spec,
            image_env=ENV,
            cwd=spec.workdir or str(place),
            user=spec.user,
            dispose=dispose,
        )
        return handle

    async def collect(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        await self._requests.close()


@pytest.fixture(scope="module")
def guest(must_work: Callable[[str, str], None]) -> Path:
    try:
        return program("excise-guest")
    except SubstrateError as error:
        must_work("native", str(error))
        raise


@pytest.fixture(scope="module")
def verdicts(guest: Path, chosen: Callable[[Callable[..., None]], list[dict[str, Any]]]) -> dict[str, Verdict]:
    """All chosen cases, side by side."""

    async def judged() -> dict[str, Verdict]:
        substrate = PlainSubstrate(guest)
        try:
            found = await check(substrate, Spec(), only={run["case"].name for run in chosen(test_keeps)}, jobs=8)
        finally:
            await substrate.close()
        return {verdict.case.name: verdict for verdict in found}

    return asyncio.run(judged())


@pytest.mark.timeout(300)  # the first of them waits for all
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_keeps(case: Case, verdicts: Mapping[str, Verdict]) -> None:
    verdict = verdicts[case.name]
    if verdict.outcome == "not declared":
        pytest.skip(verdict.reason)
    assert (verdict.outcome, verdict.reason) == ("kept", ""), case.promise

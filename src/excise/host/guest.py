"""A sandbox below a keeper whose actions are the guest's: one plain process, started once, with a socket as its link."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from excise.errors import CreateError
from excise.guest.carrier import SocketCarrier, pair
from excise.guest.handle import GuestHandle
from excise.guest.link import Link
from excise.host import packets
from excise.host.link import Keeper
from excise.host.process import Answers
from excise.spec import Spec
from excise.substrate import Capabilities


class KeptGuestHandle(GuestHandle):
    """Actions go to the guest; the lease, and the end of everything, are the keeper's."""

    def __init__(
        self,
        keeper: Keeper,
        link: Link,
        *,
        id: str,
        address: str,
        capabilities: Capabilities,
        spec: Spec,
        image_env: Mapping[str, str],
        cwd: str,
        user: str | None,
        on_close: Callable[["KeptGuestHandle"], None],
    ) -> None:
        async def dispose() -> None:
            on_close(self)
            await keeper.close()

        super().__init__(
            link,
            id=id,
            address=address,
            capabilities=capabilities,
            spec=spec,
            image_env=image_env,
            cwd=cwd,
            user=user,
            dispose=dispose,
        )
        self._keeper = keeper

    async def renew(self, lease_s: float) -> None:
        self.link.check()
        await self._keeper.send([], {"renew_s": lease_s})


async def guest_below(keeper: Keeper, program: Path) -> Link:
    """Start the guest in the keeper's place."""
    ours, theirs = pair()
    try:
        with theirs:
            await _start(keeper, program, theirs.fileno())
        return Link(SocketCarrier(ours))
    except BaseException:
        ours.close()
        raise


async def _start(keeper: Keeper, program: Path, link: int) -> None:
    """Until it is executed: its end of `answers` closes then, and says why where it could not be."""
    heard, told = packets.pair()
    with told:
        answers = Answers(heard)
        body = packets.body({"op": "guest", "program": str(program)})
        try:
            await keeper.send([body, told.fileno(), link])
        except BaseException:
            answers.close()
            raise
        finally:
            os.close(body)
    try:
        refused = await answers.next()
    finally:
        answers.close()
    if refused is not None:
        raise CreateError(f"the guest could not be started in the sandbox: {refused['error']}")

"""An open sandbox as others on this machine see it: its door, its lease, and its stay when it is kept."""

import asyncio
import logging
import os
from collections.abc import Mapping

from excise.errors import ExciseError, SandboxLost
from excise.looking.door import Door
from excise.looking.journal import Journal
from excise.looking.names import short
from excise.looking.records import About
from excise.spec import Spec
from excise.substrate import Handle, Substrate
from excise.trajectory import Recorder


class Presence:
    """Made by `Sandbox` when it is open, left when it is closed."""

    def __init__(
        self,
        substrate: Substrate,
        handle: Handle,
        spec: Spec,
        *,
        labels: Mapping[str, str],
        ttl_s: float,
        recorder: Recorder | None,
    ) -> None:
        self._substrate = substrate
        self._handle = handle
        self._image = spec.image
        self._labels = labels
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()
        self._until_s = self._since_s + ttl_s
        self._kept = False
        self._removed = asyncio.Event()
        self._journal = recorder if isinstance(recorder, Journal) else None
        self._door = Door(handle, about=self.about, removed=self._removed.set, journal=self._journal)

    def about(self) -> About:
        now_s = self._loop.time()
        return About(
            id=self._handle.id,
            address=self._substrate.address,
            image=self._image,
            age_s=now_s - self._since_s,
            lease_left_s=self._until_s - now_s,
            owner_pid=os.getpid(),
            uid=os.geteuid(),
            labels=self._labels,
            kept=self._kept,
            journal=None if self._journal is None else str(self._journal.path),
        )

    def renewed(self, ttl_s: float) -> None:
        self._until_s = self._loop.time() + ttl_s

    async def keep(self, error: BaseException | None) -> bool:
        """After `error`: whether the sandbox stays there without us. If it cannot, it has stayed until now: until somebody
        removed it, or its lease ended."""
        if not isinstance(error, Exception) or isinstance(error, SandboxLost):
            return False  # interrupted; or nothing is left to be looked at
        try:
            outlives = (await self._substrate.probe()).attach
        except ExciseError:
            outlives = False
        self._kept = True
        left_s = self._until_s - self._loop.time()
        shown = short(self._handle.id)
        logging.getLogger("excise").warning(
            "the sandbox is kept for %.0f s%s: `excise shell %s` looks in, `excise rm %s` ends it",
            left_s,
            "" if outlives else ", while this process waits (Ctrl-C ends both)",
            shown,
            shown,
        )
        if outlives:
            return True
        try:
            async with asyncio.timeout_at(self._until_s):
                await self._removed.wait()
        except TimeoutError:
            pass
        return False

    async def leave(self) -> None:
        await self._door.close()

"""A server of our own in another process, at a distance that is chosen; and the client of it, as a Substrate."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from excise.address import parse
from excise.errors import SpecError, SubstrateError
from excise.handles import finish
from excise.registry import make
from excise.spec import Spec
from excise.substrate import Capabilities, Listed, Snapshot, Substrate
from excise.substrates.remote import RemoteSubstrate
from excise.substrates.remote.handle import RemoteHandle

_START_S = 60.0
_LONGEST_RTT_MS = 10_000.0
_SERVE = "import sys; from excise.cli import main; sys.exit(main())"


class HostedSubstrate:
    """`source` behind `excise serve`. Its options, `hosted.KEY=VALUE` in an address:

    rtt_ms      how long a byte takes there and back, added by a hop between the two (0: none)
    packets     1: packets are held back, not bytes, between two network namespaces: TCP itself is far away. As root
    """

    def __init__(self, source: Substrate | str, *, rtt_ms: float = 0.0, packets: bool = False) -> None:
        """Nothing is started until something is asked of it. The source is made at the server, not here."""
        if not 0 <= rtt_ms <= _LONGEST_RTT_MS:
            raise SpecError(f"hosted.rtt_ms={rtt_ms}: a round trip takes 0 to {_LONGEST_RTT_MS:g} ms")
        self._source = make(source) if isinstance(source, str) else source
        self._rtt_ms = rtt_ms
        self._way = "link" if packets else "hop"
        self.address = _address(self._source.address, rtt_ms, packets=packets)
        self._starting = asyncio.Lock()
        self._processes: list[asyncio.subprocess.Process] = []
        self._remote: RemoteSubstrate | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None

    async def _there(self) -> RemoteSubstrate:
        async with self._starting:
            if self._remote is None:
                try:
                    self._remote = await self._start()
                except BaseException:
                    await finish(self._end())
                    raise
            return self._remote

    async def _start(self) -> RemoteSubstrate:
        if self._way == "link" and os.geteuid() != 0:
            raise SubstrateError("hosted.packets=1 makes network namespaces, which needs root; without it bytes are held back")
        self._place = tempfile.TemporaryDirectory(prefix="excise-hosted-")
        key = Path(self._place.name) / "key"
        words = (self._source.address, "--listen", "127.0.0.1:0", "--state", self._place.name, "--own-key", str(key))
        url = await self._spawned("-c", _SERVE, "serve", *words, "--while-stdin", "--drain", "0s")
        if self._rtt_ms or self._way == "link":
            port = await self._spawned("-m", f"excise.substrates.hosted.{self._way}", url.rpartition(":")[2], str(self._rtt_ms))
            url = f"http://127.0.0.1:{port}"
        return RemoteSubstrate(url, key=key.read_text().strip(), address=self.address)

    async def _spawned(self, *words: str) -> str:
        """A process of ours that ends with us: its standard input does. Its first line."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_START_S):
                if line := (await process.stdout.readline()).decode().strip():
                    return line
                said = (await process.stderr.read()).decode("utf-8", "replace").strip()
                raise SubstrateError(f"{self._source.address} cannot be served: {said[-2000:] or 'it said nothing'}")
        raise SubstrateError(f"{self._source.address} was not served in {_START_S:g} s")

    # ---- the same, there

    async def probe(self) -> Capabilities:
        return await (await self._there()).probe()

    async def create(
        self, start: Spec | Snapshot, *, deadline_s: float, lease_s: float, labels: Mapping[str, str], request_id: str
    ) -> RemoteHandle:
        there = await self._there()
        return await there.create(start, deadline_s=deadline_s, lease_s=lease_s, labels=labels, request_id=request_id)

    async def attach(self, id: str) -> RemoteHandle:
        return await (await self._there()).attach(id)

    async def list(self, labels: Mapping[str, str]) -> tuple[Listed, ...]:
        return await (await self._there()).list(labels)

    async def snapshots(self) -> tuple[Snapshot, ...]:
        return await (await self._there()).snapshots()

    async def discard(self, snapshot: Snapshot) -> None:
        await (await self._there()).discard(snapshot)

    async def collect(self) -> tuple[str, ...]:
        return await (await self._there()).collect()

    async def close(self) -> None:
        await finish(self._end())

    async def _end(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote.close()
        await self._source.close()
        processes, self._processes = self._processes, []
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
        for process in processes:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_S):
                    await process.communicate()
            if process.returncode is None:
                process.kill()
                await process.wait()
        if self._place is not None:
            self._place.cleanup()
            self._place = None


def _address(source: str, rtt_ms: float, *, packets: bool) -> str:
    inner = parse(source)
    far = {"hosted.rtt_ms": f"{rtt_ms:g}"} if rtt_ms else {}
    options = {**inner.options, **far, **({"hosted.packets": "1"} if packets else {})}
    return str(msgspec.structs.replace(inner, wrappers=("hosted", *inner.wrappers), options=options))

"""A sandbox with a guest in it as a Handle: the same for every substrate that can carry the guest's frames."""

import asyncio
import errno
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial

import msgspec

from excise.action import KEEP_ALL, Action, Batch, Command, Exec, FileAction, List, Observation, Read, Shell, Stat
from excise.adoption import require_adoption, same_terms
from excise.errors import SandboxLost, SpecError
from excise.guest import encode, wire
from excise.guest.exchange import Collected, Exchange, Held, Request
from excise.guest.link import Link
from excise.guest.process import GuestConnection, GuestProcess, check_file, feed_tar, file_error, observation, read_tar
from excise.handles import Undeclared, combine, environment, finish, make_ready, prepare, without_secrets
from excise.spec import Spec
from excise.substrate import Capabilities, Connection, Process, require_command, unsupported

_STREAM_TRUE = Exec(("true",), timeout_s=60)


class GuestHandle(Undeclared):
    """Actions as frames on one link. Pausing, leases and what is left to remove are the substrate's own."""

    def __init__(
        self,
        link: Link,
        *,
        id: str,
        address: str,
        capabilities: Capabilities,
        spec: Spec,
        image_env: Mapping[str, str],
        cwd: str | None,
        user: str | None,
        dispose: Callable[[], Awaitable[None]],
        ready: bool = False,
    ) -> None:
        """Greets the guest. `dispose` removes the sandbox, after the link was closed; it runs once."""
        self.id = id
        self._address = address
        self._capabilities = capabilities
        self._spec = spec
        self._dispose = dispose
        self._closing: asyncio.Task[None] | None = None
        self._readying = asyncio.Lock()
        self._is_ready = ready
        self._adopted = False
        """Its first command was answered before it became what it is now."""
        self._image_env: Mapping[str, str] = image_env
        self.base = environment(image_env, spec)
        """The variables every action has."""
        self.sessions: set[str] = set()
        """The names that were used in this life."""
        self._cwd, self._user = cwd, user
        self.greet(link)

    def greet(self, link: Link, *, root: bool = False) -> None:
        """Begin a life on this link, the only one from now on. `root`: in another root, which the guest is given."""
        # A terminal's programs want to know its kind; the image or the spec may have said it already.
        self._terminal = b"" if "TERM" in self.base else wire.variable("TERM", "xterm")
        link.greet(self.base, self._cwd, self._user, root=root)
        link.conceal = partial(without_secrets, spec=self._spec)
        self.link = link
        self.sessions.clear()

    def carry_on(self, link: Link, sessions: Iterable[str]) -> None:
        """Go on with the life at the other end of this link, which is a copy of another's, with these sessions."""
        self._terminal = b"" if "TERM" in self.base else wire.variable("TERM", "xterm")
        link.conceal = partial(without_secrets, spec=self._spec)
        self.link = link
        self.sessions = set(sessions)

    async def ready(self) -> None:
        """Once is enough: who asked for the same sandbox with the same request_id does not run its steps again."""
        async with self._readying:
            self.link.check()
            if not self._is_ready:
                await self._make_ready()
                self._is_ready = True

    async def _make_ready(self) -> None:
        if self._adopted:
            await prepare(self, self._spec, self._built)
        else:
            await make_ready(self, self._spec, _STREAM_TRUE, self._built)

    async def _built(self) -> None:
        """The spec's steps are done; for a substrate whose sandboxes change then."""

    # ---- another spec's

    async def alive(self) -> None:
        await self.link.answer()

    async def adopt(self, spec: Spec) -> None:
        async with self._readying:
            self.link.check()
            if self._is_ready and same_terms(self._made_of, spec):
                self._remain(spec)
                self._adopted, self._is_ready = True, False
                return
            require_adoption(self._made_of, spec, self._capabilities, self._address)
            self._require_fit(spec)
            try:
                await self._take_on(spec)
            except SpecError:
                raise  # before anything was changed
            except BaseException as error:
                self.link.fail(f"it was given another spec, and given up half-way ({type(error).__name__}); make another one")
                raise
            self._adopted, self._is_ready = self._adopted or self._is_ready, False

    @property
    def _made_of(self) -> Spec:
        """The spec as it was asked for."""
        return self._spec

    def _remain(self, spec: Spec) -> None:
        """A sandbox of `spec`, which it is already but for ready commands and labels."""
        self._spec = spec

    def _require_fit(self, spec: Spec) -> None:
        """Refuse what this one sandbox has nothing for."""

    async def _take_on(self, spec: Spec) -> None:
        """The terms of `spec`, which was found fit."""
        await self._become(spec, self._image_env)

    async def _become(self, spec: Spec, image_env: Mapping[str, str]) -> None:
        """Its variables and secrets. Where they change, a life begins with them: nothing of the one before runs on."""
        before = self._spec, self._image_env, self.base
        self._spec, self._image_env, self.base = spec, image_env, environment(image_env, spec)
        self.link.conceal = partial(without_secrets, spec=spec)
        if self.base == before[-1]:
            return
        try:
            self.greet(self.link)
        except SpecError:  # a variable that cannot be said
            self._spec, self._image_env, self.base = before
            raise
        await self.link.greeted()

    # ---- actions

    async def run(self, action: Action) -> Observation:
        if isinstance(action, Batch):
            return await self._batch(action)
        exchange, request = self._collected(action)
        self._open(exchange, request)
        try:
            ended = await exchange.finished()
        except asyncio.CancelledError:
            await finish(exchange.kill())
            raise
        return self._observed(action, exchange, ended)

    def _collected(self, action: Command | FileAction) -> tuple[Collected, Request]:
        if isinstance(action, Exec | Shell):
            return Collected(self.link, action.keep), self._command(action, interactive=False)
        request, most_bytes = encode.file(action)
        return Collected(self.link, KEEP_ALL, most_bytes), request

    def _command(self, action: Command, *, interactive: bool) -> Request:
        require_command(action, self._capabilities, self._address)
        if isinstance(action, Shell) and action.session is not None:
            self.sessions.add(action.session)
        return encode.command(action, interactive=interactive, terminal=self._terminal)

    def _open(self, exchange: Exchange, request: Request) -> None:
        number = self.link.number()
        self.link.open(((number, exchange),), exchange.opening(number, request))
        if request.timeout_s is not None:
            exchange.arm(request.timeout_s)

    def _observed(self, action: Command | FileAction, exchange: Collected, ended: wire.Ended) -> Observation:
        stdout = exchange.bytes(wire.STDOUT)
        if not isinstance(action, Exec | Shell):
            ended = ended._replace(error=file_error(ended))
        if isinstance(action, List | Stat):
            seen = observation(ended)
            return seen if ended.error else self._listed(seen, stdout)
        if isinstance(action, Read) and len(stdout) > encode.LONGEST_READ_BYTES:
            return Observation(exit_code=1, errno=errno.EFBIG, guest_ns=ended.guest_ns)
        return observation(ended, stdout, exchange.bytes(wire.STDERR), exchange.dropped_bytes)

    def _listed(self, seen: Observation, entries: bytes) -> Observation:
        try:
            return msgspec.structs.replace(seen, files=wire.entries(entries))
        except wire.ProtocolError as error:
            self.link.fail(f"the guest broke the protocol: it sent {error}")
            raise SandboxLost(self.link.reason) from None

    async def _batch(self, batch: Batch) -> Observation:
        """All parts in one send; the guest runs each after the one before it."""
        made = [self._collected(action) for action in batch.actions]
        if not made:
            return combine([])
        first = self.link.number(len(made))
        chain = wire.FLAG_CHAIN | (wire.FLAG_STOP if batch.stop_on_failure else 0)
        numbered = [(first + at, exchange) for at, (exchange, _) in enumerate(made)]
        opening = [exchange.opening(first + at, request, chain if at else 0) for at, (exchange, request) in enumerate(made)]
        self.link.open(numbered, b"".join(opening))
        try:
            ends = [await exchange.finished() for exchange, _ in made]
        except BaseException:
            # The last first, so that none begins because the one before it was ended.
            for exchange, _ in reversed(made):
                exchange.order_kill()
            await finish(_all_killed([exchange for exchange, _ in made]))
            raise
        parts = [
            self._observed(action, exchange, ended)
            for action, (exchange, _), ended in zip(batch.actions, made, ends, strict=True)
            if ended.end is not None
        ]
        return combine(parts)

    async def start(self, action: Command) -> Process:
        if not self._capabilities.stream:
            raise unsupported(self._address, "start()")
        request = self._command(action, interactive=True)
        exchange = await self._begin(request._replace(flags=request.flags | wire.FLAG_STARTED))
        return GuestProcess(exchange, action)

    async def _begin(self, request: Request) -> Held:
        """Start what asked to be told of its beginning, and wait for that."""
        exchange = Held(self.link)
        self._open(exchange, request)
        try:
            await exchange.begun()
        except asyncio.CancelledError:
            await finish(exchange.kill())
            raise
        return exchange

    # ---- streams

    async def upload(self, path: str, tar: AsyncIterable[bytes]) -> None:
        exchange = Held(self.link)
        self._open(exchange, encode.untar(path))
        await feed_tar(exchange, path, tar)

    async def download(self, path: str) -> AsyncIterator[bytes]:
        exchange = Held(self.link)
        self._open(exchange, encode.tar(path))
        async for piece in read_tar(exchange, path):
            yield piece

    async def connect(self, port: int) -> Connection:
        if not self._capabilities.ports:
            raise unsupported(self._address, f"connect({port})")
        exchange = await self._begin(encode.connect(port))
        if exchange.over:
            check_file(exchange.outcome(), f"port {port}")
        return GuestConnection(exchange)

    # ---- life

    async def renew(self, lease_s: float) -> None:
        self.link.check()

    async def close(self) -> None:
        """Hang up, which ends everything inside, and remove what is left. Carried to its end even when cancelled."""
        self.link.close()
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._dispose())
        await finish(asyncio.shield(self._closing))


async def _all_killed(exchanges: list[Collected]) -> None:
    for exchange in exchanges:
        await exchange.kill()

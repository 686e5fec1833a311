"""Both ends of the binary path, fed with frames that nobody of ours sends in an order that nobody of ours sends them in."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from excise.action import Exec, Read, Shell, Write
from excise.channel import frames, records
from excise.channel.channel import Channel
from excise.channel.packing import packed
from excise.channel.refusal import Refused
from excise.server.budget import Budget
from excise.server.host import Host
from excise.server.keys import Key
from excise.server.ledger import Ledger
from excise.server.rate import Rate
from excise.server.session import Session
from excise.spec import Spec
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.remote.client import Client
from excise.substrates.remote.where import where

KEY = Key(name="ann", sha256="x", sandboxes=3)
NAMES = st.sampled_from(["fake-1", "none", ""])
ACTIONS = st.sampled_from([Exec(("true",)), Shell("echo hi", session="m"), Read("/x"), Write("/x", b"y"), Shell("sleep 5")])
ASKED = st.one_of(
    st.just(records.Probe()),
    st.builds(
        records.Create,
        spec=st.just(Spec()),
        deadline_s=st.floats(allow_nan=True),
        lease_s=st.floats(allow_nan=True),
        labels=st.just({}),
        request_id=st.sampled_from(["a", "b"]),
    ),
    st.builds(records.Run, NAMES, ACTIONS),
    st.builds(records.Start, NAMES, st.just(Exec(("cat",)))),
    st.builds(records.Upload, NAMES, st.just("/")),
    st.builds(records.Download, NAMES, st.just("/")),
    st.builds(records.Connect, NAMES, st.integers(-1, 70000)),
    st.builds(records.Renew, NAMES, st.floats(allow_nan=True)),
    st.builds(records.Close, NAMES),
    st.builds(records.Long, st.integers(-5, 1 << 40)),
)
FROM_CLIENT = st.one_of(
    st.builds(lambda asked, call: frames.pack(frames.CALL, call, 0, packed(asked)), ASKED, st.integers(1, 12)),
    st.builds(
        lambda call, data: frames.pack(frames.DATA, call, 0, data), st.integers(1, 12), st.binary(min_size=1, max_size=99)
    ),
    st.builds(lambda call: frames.pack(frames.EOF, call, 0), st.integers(1, 12)),
    st.builds(lambda call: frames.pack(frames.CANCEL, call, 0), st.integers(1, 12)),
    st.builds(
        lambda call, n: frames.pack(frames.CREDIT, call, 0, frames.amount(n)), st.integers(1, 12), st.integers(0, 2**32 - 1)
    ),
    st.builds(lambda call: frames.pack(frames.TELL, call, 0, packed(records.Signal(9))), st.integers(1, 12)),
    st.binary(max_size=40),
)


class Nowhere(asyncio.Transport):
    def write(self, data: Any) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


async def _one_sandbox(host: Host) -> None:
    """One whose name can be guessed: a real one's cannot."""
    held = await host.create(KEY, Spec(), deadline_s=9, lease_s=900, labels={}, request_id="first")
    held.id = "fake-1"
    host._held = {"fake-1": held}  # pyright: ignore[reportPrivateUsage]


@settings(max_examples=60, deadline=None)
@given(st.lists(FROM_CLIENT, max_size=30))
def test_a_server_holds_whatever_its_client_sends(sent: list[bytes]) -> None:
    complaints: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        with tempfile.TemporaryDirectory() as place:
            host = Host(FakeSubstrate(), Ledger(Path(place) / "x.ledger"))
            await host.open()
            await _one_sandbox(host)
            ended: list[Session] = []
            session = Session(host, KEY, Budget(), Rate(0.0), ended.append)
            session.channel.connect(Nowhere(), 0)
            for data in sent:
                session.channel.take(data)
                await asyncio.sleep(0.01)
                assert host.count <= KEY.sandboxes
            session.channel.fail("over")
            assert ended == [session]
            await host.close()
            assert host.count == 0

    virtual_time.run(main())
    assert complaints == []


VALUES = st.sampled_from(
    [
        records.Done(),
        records.Made("x"),
        Refused("lost", "y"),
        records.Long(3),
        records.Names(("a",)),
        Refused("capacity", "z", retry_s=0.1),
    ]
)
FROM_SERVER = st.one_of(
    st.builds(lambda v, call: frames.pack(frames.ANSWER, call, 0, packed(records.Answer(v))), VALUES, st.integers(1, 4)),
    st.builds(
        lambda call, data: frames.pack(frames.DATA, call, 0, data), st.integers(1, 4), st.binary(min_size=1, max_size=99)
    ),
    st.builds(lambda kind, call: frames.pack(kind, call, 0), st.sampled_from([frames.EOF, frames.STARTED]), st.integers(1, 4)),
    st.builds(lambda: frames.pack(frames.BYE, 0, 0, b"bye")),
    st.binary(max_size=40),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(FROM_SERVER, max_size=20))
def test_a_client_holds_whatever_its_server_sends(sent: list[bytes]) -> None:
    complaints: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        client = Client(where("http://127.0.0.1:1"), key="x")
        client._channel = channel = Channel(client, frames.FROM_SERVER)  # pyright: ignore[reportPrivateUsage]
        channel.connect(Nowhere(), 0)
        asking = [asyncio.ensure_future(client.ask(one)) for one in (records.Probe(), records.Close("x"), records.Ready("x"))]
        await asyncio.sleep(0)
        for data in sent:
            channel.take(data)
            await asyncio.sleep(0)
        channel.fail("over")
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert len(outcomes) == 3  # every one of them is told something
        await client.close()

    asyncio.run(main())
    assert complaints == []

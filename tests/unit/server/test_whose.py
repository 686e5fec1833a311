"""Whose is what, at its edges: ids that recur, caps that are raced for, a disk that is full."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from excise.errors import SandboxLost, SpecError, SubstrateError
from excise.server.host import Held, Host
from excise.server.keys import Key
from excise.server.ledger import Entry, Ledger
from excise.spec import Spec
from excise.substrates.fake import FakeSubstrate, virtual_time
from excise.substrates.pool import Pool

ANN, BOB = Key(name="ann", sha256="x", snapshots=2), Key(name="bob", sha256="y")


async def made(host: Host, request_id: str, key: Key = ANN, **labels: str) -> Held:
    held = await host.create(key, Spec(), deadline_s=60, lease_s=60, labels=labels, request_id=request_id)
    await held.handle.ready()
    return held


def test_who_comes_too_late_does_not_find_the_next_ones_sandbox(tmp_path: Path) -> None:
    """A pool hands the same one out again, under the same name."""

    async def main() -> None:
        host = Host(Pool(FakeSubstrate(), policy="none", reuse="reset", pressure=False), Ledger(tmp_path / "x.ledger"))
        await host.open()
        assert isinstance(host.substrate, Pool)
        await host.substrate.fill(Spec())
        first = await made(host, "a")
        await asyncio.sleep(61)  # its lease is over, and its client does not know
        second = await made(host, "b")
        assert second.handle.id == first.handle.id
        assert host.find(ANN, second.id) is second
        with pytest.raises(SandboxLost, match="there is no sandbox"):
            host.find(ANN, first.id)
        await host.close()

    virtual_time.run(main())


def test_one_that_was_put_in_anothers_place_is_closed_and_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(Pool(FakeSubstrate(), policy="none", pressure=False), Ledger(tmp_path / "x.ledger"))
        await host.open()
        held = await made(host, "a")
        held.handle._id = "another"  # type: ignore[attr-defined]  # as PoolHandle.become does
        assert [one.id for one in host.listed(ANN, {})] == [held.id]
        await host.end(held)
        assert (host.count, host.listed(ANN, {})) == (0, ())
        await host.close()
        assert not (tmp_path / "x.ledger").exists()

    virtual_time.run(main())


def test_a_snapshot_whose_time_is_over_is_not_counted(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(FakeSubstrate(), Ledger(tmp_path / "x.ledger"))
        await host.open()
        held = await made(host, "a")
        kept = await host.take(held, 10)
        await asyncio.sleep(9)
        assert host.taken(ANN) == (kept,)
        await asyncio.sleep(2)
        assert host.taken(ANN) == ()
        await host.close()

    virtual_time.run(main())


def test_snapshots_that_are_taken_at_once_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(FakeSubstrate(action_s=1.0), Ledger(tmp_path / "x.ledger"))
        await host.open()
        held = await made(host, "a")
        taken = await asyncio.gather(*(host.take(held, None) for _ in range(8)), return_exceptions=True)
        assert [type(one).__name__ for one in taken if isinstance(one, BaseException)] == ["SubstrateError"] * 6
        with pytest.raises(SubstrateError, match="has its 2 snapshots"):
            await host.take(held, None)
        await host.close()

    virtual_time.run(main())


def test_labels_have_a_bound_and_a_lease_is_looked_at_before_it_is_given(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(FakeSubstrate(), Ledger(tmp_path / "x.ledger"))
        await host.open()
        with pytest.raises(SpecError, match="labels have at most"):
            await made(host, "a", big="x" * 20_000)
        held = await made(host, "b")
        asked: list[float] = []
        held.handle.renew = asked.append  # type: ignore[method-assign,assignment]
        for lease_s in (float("nan"), -1.0, 1e9):
            with pytest.raises(SpecError, match="a lease is above zero"):
                await host.renew(held, lease_s)
        assert asked == []
        await host.close()

    virtual_time.run(main())


def test_one_that_is_closed_while_it_is_renewed_is_not_written_down_again(tmp_path: Path) -> None:
    async def main() -> None:
        host = Host(FakeSubstrate(), Ledger(tmp_path / "x.ledger"))
        await host.open()
        held = await made(host, "a")
        renew = held.handle.renew

        async def slow(lease_s: float) -> None:
            await renew(lease_s)
            await asyncio.sleep(1)

        held.handle.renew = slow  # type: ignore[method-assign]
        renewing = asyncio.ensure_future(host.renew(held, 50))
        await asyncio.sleep(0.5)
        await host.end(held)
        with pytest.raises(SandboxLost):
            await renewing
        await asyncio.sleep(100)
        assert host.figures.expired == 0
        await host.close()
        assert not (tmp_path / "x.ledger").exists()

    virtual_time.run(main())


class Dying(FakeSubstrate):
    """Attaches to whatever it is asked for, which is dead."""

    async def probe(self) -> Any:
        import msgspec

        return msgspec.structs.replace(await super().probe(), attach=True)

    async def attach(self, id: str) -> Any:
        handle = await super().create(Spec(), deadline_s=9, lease_s=9, labels={}, request_id=id)

        async def dead() -> None:
            raise SandboxLost("it is dead")

        if id == "dead":
            handle.alive = dead  # type: ignore[method-assign]
        return handle


def test_what_is_dead_or_whose_key_is_gone_is_not_held_again(tmp_path: Path) -> None:
    async def main() -> None:
        before = Ledger(tmp_path / "x.ledger")
        before.open()
        for name, key in (("dead", "ann"), ("fine", "ann"), ("gone", "removed")):
            before.note(Entry(f"{name}-1", key, {}, 9e9, at=name))
        os.close(before._lock or -1)  # as its death does  # pyright: ignore[reportPrivateUsage]
        host = Host(Dying(), Ledger(tmp_path / "x.ledger"), {"ann": ANN, "bob": BOB})
        await host.open()
        assert [held.id for held in host.all()] == ["fine-1"]
        assert host.find(ANN, "fine-1").key is ANN
        assert (host.figures.readopted, host.figures.cleaned) == (1, 2)
        await host.close()

    virtual_time.run(main())


def test_who_is_killed_while_it_takes_over_leaves_the_rest_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "x.ledger"
    for life in range(2):
        ledger = Ledger(path)
        ledger.open()
        if life == 0:
            ledger.note(Entry("a", "ann", {}, 5.0))
            ledger.note(Entry("b", "ann", {}, 5.0))
        else:
            ledger.note(Entry("a", gone=True))  # and here it dies
        os.close(ledger._lock or -1)  # pyright: ignore[reportPrivateUsage]
    assert [entry.id for entry in Ledger(path).open()] == ["b"]


def test_a_full_disk_ends_nothing_and_is_caught_up_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(tmp_path / "x.ledger")
    ledger.open()
    ledger.note(Entry("a", "ann", {}, 5.0))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, ledger._file or -1)  # pyright: ignore[reportPrivateUsage]
    os.close(full)
    ledger.note(Entry("b", "ann", {}, 5.0))
    assert ledger.is_behind
    assert "cannot be written" in caplog.text
    ledger.note(Entry("a", gone=True))  # there is room again: all of it is written
    assert not ledger.is_behind
    os.close(ledger._lock or -1)  # pyright: ignore[reportPrivateUsage]
    assert [entry.id for entry in Ledger(tmp_path / "x.ledger").open()] == ["b"]

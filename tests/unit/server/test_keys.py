"""Keys are kept as hashes, rates and budgets hold, and a ledger tells what was left."""

import asyncio
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.action import KEEP_ALL, Batch, Exec, Keep, Read, Shell
from excise.channel import records
from excise.errors import SpecError
from excise.server import keys
from excise.server.budget import Budget, bounded, needed
from excise.server.host import Refusal
from excise.server.keys import Key, Keys
from excise.server.ledger import Entry, Ledger
from excise.server.rate import Rate

MIB = 1 << 20


def test_a_key_is_found_by_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    given_out = keys.fresh()
    keys.add(path, Key(name="ann", sha256=keys.digest(given_out), sandboxes=3))
    assert given_out not in path.read_text()
    known = Keys(keys.read(path))
    found = known.find(given_out)
    assert found is not None
    assert (found.name, found.sandboxes) == ("ann", 3)
    for wrong in (None, "", given_out[:-1], given_out + "x", keys.digest(given_out), "ann"):
        assert known.find(wrong) is None
    with pytest.raises(SpecError, match="has a key ann already"):
        keys.add(path, Key(name="ann", sha256="x"))
    keys.remove(path, "ann")
    assert keys.read(path) == []
    with pytest.raises(SpecError, match="has no key 'ann'"):
        keys.remove(path, "ann")


@pytest.mark.parametrize("name", ["", "Ann", "a b", "../x", "a" * 64, "-a"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match="cannot be a key's name"):
        Key(name=name, sha256="x")


def test_a_file_that_is_none_says_so(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    for text in ("{", "[]", json.dumps({"keys": [{"name": "a"}]}), json.dumps({"keys": [], "more": 1})):
        path.write_text(text)
        with pytest.raises(SpecError, match="is no file of keys"):
            keys.read(path)


def test_a_rate_lets_a_burst_through_and_then_its_rate() -> None:
    rate = Rate(5.0)
    assert sum(rate.wait_s(100.0) == 0 for _ in range(200)) == 50
    assert rate.wait_s(100.0) == pytest.approx(0.2)
    assert sum(rate.wait_s(101.0) == 0 for _ in range(200)) == 5
    assert all(Rate(0.0).wait_s(0.0) == 0 for _ in range(1000))


def test_a_budget_is_never_above_its_cap_and_nobody_waits_for_ever() -> None:
    async def main() -> None:
        budget, running, most = Budget(512 * MIB), 0, 0

        async def one(asked: records.Asked) -> None:
            nonlocal running, most
            async with budget.of(asked):
                running += needed(asked)
                most = max(most, running)
                await asyncio.sleep(0)
                running -= needed(asked)

        tasks = [asyncio.ensure_future(one(records.Run("i", Read("/x", 0, MIB + MIB * (n % 300))))) for n in range(1000)]
        await asyncio.sleep(0)
        for task in tasks[100:500:3]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert 0 < most <= 512 * MIB
        async with budget.of(records.Run("i", Read("/x"))):
            pass

    asyncio.run(main())


def test_commands_and_streams_at_once_have_a_bound() -> None:
    async def main() -> None:
        budget = Budget(sandboxes=1)
        batch = records.Run("i", Batch((Exec(("a",)),) * 200))
        async with budget.of(batch), budget.of(records.Run("i", Exec(("a",)))):
            with pytest.raises(Refusal, match="commands of this key run at once"):
                async with budget.of(batch):
                    pass
            async with budget.of(records.Run("i", Read("/x", 0, 5))), budget.of(records.Close("i")):
                pass
        async with AsyncExitStack() as stack:
            for _ in range(2048):
                await stack.enter_async_context(budget.of(records.Start("i", Exec(("a",)))))
            with pytest.raises(Refusal, match="have bytes on their way"):
                await stack.enter_async_context(budget.of(records.Connect("i", 80)))
        async with budget.of(batch), budget.of(records.Connect("i", 80)):
            pass
        with budget.charged(1100 * MIB):  # what was printed, and not yet taken
            waiting = asyncio.ensure_future(_through(budget, records.Run("i", Exec(("a",)))))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await _through(budget, records.Close("i"))  # which never waits
        await waiting
        assert budget.used_bytes == 0

    asyncio.run(main())


async def _through(budget: Budget, asked: records.Asked) -> None:
    async with budget.of(asked):
        pass


def test_who_holds_some_waits_for_no_more() -> None:
    async def main() -> None:
        budget = Budget(512 * MIB)
        both = records.Run("i", Batch((Read("/x", 0, 200 * MIB), Read("/y", 0, 200 * MIB))))
        async with budget.hold(100 * MIB), budget.of(both, 100 * MIB):
            assert budget.used_bytes == 400 * MIB
            async with budget.hold(100 * MIB):
                with pytest.raises(Refusal, match="may be longer than there is room for now"):
                    async with budget.of(both, 100 * MIB):
                        pass
        assert budget.used_bytes == 0

    asyncio.run(main())


def test_no_command_keeps_more_than_there_is_room_for() -> None:
    kept = bounded(records.Run("i", Exec(("a",), keep=KEEP_ALL)))
    assert isinstance(kept, records.Run)
    assert isinstance(kept.action, Exec)
    assert kept.action.keep == Keep(128 * MIB, 0)
    assert needed(kept) == 256 * MIB
    usual = records.Run("i", Batch((Exec(("a",)), Shell("b", keep=Keep(5, 5)))))
    assert bounded(usual) is usual
    batch = bounded(records.Run("i", Batch((Exec(("a",), keep=Keep(0, 1 << 62)),))))
    assert isinstance(batch, records.Run)
    assert isinstance(batch.action, Batch)
    assert batch.action.actions[0] == Exec(("a",), keep=Keep(0, 128 * MIB))


def test_what_an_answer_may_take_is_known_before() -> None:
    assert needed(records.Run("i", Read("/x", 0, 100))) == 100
    assert needed(records.Run("i", Read("/x"))) == 256 * MIB
    assert needed(records.Run("i", Batch((Exec(("a",)), Read("/x", 0, MIB))))) == MIB + 65536
    assert needed(records.Alive("i")) == 0


def test_a_ledger_that_is_closed_leaves_no_file_and_one_that_is_refused_leaves_anothers(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "x.ledger"), Ledger(tmp_path / "x.ledger")
    first.open()
    with pytest.raises(SpecError, match="a server that runs writes"):
        second.open()
    second.close()
    with pytest.raises(SpecError, match="a server that runs writes"):
        Ledger(tmp_path / "x.ledger").open()
    first.close()
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=200), st.integers(0, 40))
def test_a_ledger_tells_what_was_held_when_it_was_cut(changes: list[tuple[int, bool]], cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "x.ledger"
        ledger = Ledger(path)
        assert ledger.open() == ()
        held: set[str] = set()
        for number, gone in changes:
            ledger.note(Entry(str(number), "k", {}, 5.0, gone))
            (held.discard if gone else held.add)(str(number))
        with pytest.raises(SpecError, match="a server that runs writes"):
            Ledger(path).open()
        data = path.read_bytes()
        if cut and data:
            path.write_bytes(data + b'{"id":"half')  # killed while it wrote
        os.close(ledger._lock or -1)  # as its death does  # pyright: ignore[reportPrivateUsage]
        assert {entry.id for entry in Ledger(path).open()} == held

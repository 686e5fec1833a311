"""After a rollout: reset, verified, shelved for its owner; or closed. A failed proof is kept, and the state made anew."""

import asyncio
from collections.abc import Callable

import pytest

from excise.action import Shell
from excise.errors import SandboxLost
from excise.sandbox import Sandbox
from excise.spec import Secret, Spec, Stage, Step
from excise.substrate import Change, Snapshot
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.handle import FakeHandle
from excise.substrates.pool import Pool
from pooled import claim, idle_of, on_pool, read, source, spec


def test_a_used_one_comes_back_clean_and_is_claimed_again() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        first = await claim(pool, spec())
        await first.run(Shell("echo mine > left; rm deps; echo x > /tmp/left; sleep 1000 &"))
        await first.close()
        await asyncio.sleep(1)
        second = await claim(pool, spec())
        assert second.id == first.id
        assert await read(second, "deps") == "installed"
        assert not (await second.run(Shell("test -e left || test -e /tmp/left"))).ok
        assert (pool.figures().reused, pool.figures().hits["deps"]) == (1, 2)

    on_pool(body, policy="none", reuse="reset")


def test_what_the_rollout_started_is_dead_before_close_returns() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        first = await claim(pool, spec())
        running = asyncio.ensure_future(first.run(Shell("sleep 1000")))
        process = await first.start(Shell("sleep 1000"))
        await asyncio.sleep(1)
        await first.close()
        with pytest.raises(SandboxLost):
            await running
        with pytest.raises(SandboxLost):
            await process.wait()
        assert pool.figures().discarded == 0

    on_pool(body, policy="none", reuse="reset")


def test_its_terms_are_taken_from_it_too() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(Spec())
        handle = await claim(pool, Spec(secrets={"TOKEN": Secret("hush")}, boot=(Shell("touch booted; sleep 1000"),)))
        await handle.close()
        await asyncio.sleep(1)
        (idle,) = idle_of(pool)
        assert not idle.spec.secrets
        assert (await idle.run(Shell('printf "$TOKEN"; test -e booted'))).stdout == b""
        again = await claim(pool, Spec())
        assert again.id == handle.id
        assert not (await again.run(Shell("test -e booted"))).ok

    on_pool(body, policy="none", reuse="reset")


def test_never_is_never() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        await pool.fill(spec())
        handle = await claim(pool, spec())
        await handle.close()
        assert await fake.list({}) == ()
        assert pool.figures().discarded == 1

    on_pool(body, policy="none", reuse="never")


def used(**options: float) -> tuple[int, int]:
    """How many of five rollouts' sandboxes came back, and how many did not, where things cost this much."""
    seen: list[tuple[int, int]] = []

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec(), 2)
        for _each in range(5):
            await (await claim(pool, spec())).close()
            await asyncio.sleep(1)
        seen.append((pool.figures().reused, pool.figures().discarded))

    on_pool(body, policy="none", source=source(**options))
    return seen[0]


def test_measured_costs_decide() -> None:
    assert used(create_s=2.0, close_s=1.0, action_s=0.0) == (5, 0)
    # Every verb of a reset and of its verification takes longer here than a create from the template and a close.
    assert used(create_s=0.0, close_s=0.0, action_s=3.0)[1] >= 4


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("https://name:word@host/x.git", False),
        ("https://token@host/x.git", False),
        ("ssh://git:word@host/x.git", False),
        ("ssh://git@host/x.git", True),
        ("git@host:x.git", True),
        ("https://host/x@y.git", True),
        ("https://host:8443/x.git", True),
    ],
)
def test_what_was_fetched_by_an_address_with_a_password_is_its_owners(url: str, public: bool) -> None:
    step = Step("repo", (Shell("sleep 5; echo one > commit", env={"url": url}),), Stage.REPO)

    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(Spec(steps=(step,), labels={"owner": "me"}))
        theirs = await claim(pool, Spec(steps=(step,)), owner="they")
        assert pool.figures().hits["repo"] == int(public)
        await claim(pool, Spec(steps=(step,)), owner="me")
        assert pool.figures().hits["repo"] == 1
        await theirs.close()

    on_pool(body, policy="none", reuse="never")


def test_it_never_crosses_to_another_owner() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec())
        mine = await claim(pool, spec(), owner="me")
        await mine.close()
        await asyncio.sleep(1)
        theirs = await claim(pool, spec(), owner="they")
        assert theirs.id != mine.id
        nobodys = await claim(pool, spec())
        assert nobodys.id != mine.id
        again = await claim(pool, spec(), owner="me")
        assert again.id == mine.id

    on_pool(body, policy="none", reuse="reset")


def private(value: str) -> Spec:
    """A repository that is fetched with a credential."""
    return Spec(steps=(Step("fetch", (Shell('sleep 5; echo "got with $TOKEN" > fetched'),)),), secrets={"TOKEN": Secret(value)})


def test_what_was_fetched_with_a_credential_is_its_owners_templates_included() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        mine = await claim(pool, private("a"), owner="me")
        assert pool.figures().templates == 1
        await mine.close()
        await asyncio.sleep(1)
        theirs = await claim(pool, private("b"), owner="they")
        assert await read(theirs, "fetched") == "got with b"
        same_value = await claim(pool, private("a"), owner="they")
        assert same_value.id != mine.id
        other_value = await claim(pool, private("c"), owner="me")
        assert await read(other_value, "fetched") == "got with c"
        again = await claim(pool, private("a"), owner="me")
        assert again.id == mine.id
        assert pool.figures().hits["deps"] == 1

    on_pool(body, policy="none", reuse="reset")


def test_no_secret_is_in_what_the_pool_says() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        value = "very-secret-value"
        handle = await claim(pool, private(value), owner="me")
        shown = repr((pool.figures(), list(pool._stock.slots), list(pool._stock.shelf), await pool.list({}), pool.address))
        assert value not in shown
        await handle.close()

    on_pool(body, policy="none")


Damage = Callable[[pytest.MonkeyPatch], None]


def leaves_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source whose reset leaves something behind."""
    whole = FakeHandle.reset

    async def reset(self: FakeHandle, snapshot: Snapshot) -> None:
        await whole(self, snapshot)
        await self.run(Shell("echo forgotten > left-behind"))

    monkeypatch.setattr(FakeHandle, "reset", reset)


def cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    async def diff(self: FakeHandle, since: Snapshot | None, *, contents: bool = False) -> tuple[Change, ...]:
        raise SandboxLost("the proof failed: layer 3 is another one")

    monkeypatch.setattr(FakeHandle, "diff", diff)


@pytest.mark.parametrize(("damage", "evidence"), [(leaves_a_file, "added"), (cannot_say, "layer 3")])
def test_a_failed_proof_is_quarantined_with_its_evidence(
    damage: Damage, evidence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        await pool.fill(spec())
        damage(monkeypatch)
        first = await claim(pool, spec())
        await first.close()
        await asyncio.sleep(5)
        assert await fake.list({}) == ()
        (record,) = pool.figures().quarantine
        assert record.sandbox == first.id
        assert evidence in record.evidence[0]
        second = await claim(pool, spec())
        await second.close()
        assert len(pool.figures().quarantine) == 1  # its state is not reused again
        assert pool.figures().discarded == 1

    on_pool(body, policy="none", reuse="reset")


def test_a_lost_one_is_closed_and_not_shelved() -> None:
    async def body(pool: Pool, fake: FakeSubstrate) -> None:
        await pool.fill(spec())
        async with Sandbox(pool, spec()) as box:
            (inner,) = fake._sandboxes.values()
            inner._life.end("the machine died")
            with pytest.raises(SandboxLost):
                await box.run("true")
        await asyncio.sleep(5)
        assert await fake.list({}) == ()
        assert (pool.figures().reused, pool.figures().quarantine) == (0, ())

    on_pool(body, policy="none", reuse="reset")


def test_a_miss_that_was_built_for_all_comes_back_to_its_own_state() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await (await claim(pool, spec())).close()
        await asyncio.sleep(1)
        assert pool.figures().idle["deps"] == 1

    on_pool(body, policy="none", reuse="reset")


def test_one_that_was_switched_comes_back_as_what_it_was() -> None:
    async def body(pool: Pool, _: FakeSubstrate) -> None:
        await pool.fill(spec("one"))
        await (await claim(pool, spec("two"))).close()
        await asyncio.sleep(1)
        begun_s = asyncio.get_running_loop().time()
        handle = await claim(pool, spec("one"))
        assert asyncio.get_running_loop().time() - begun_s < 0.1
        assert await read(handle, "commit") == "one"

    on_pool(body, policy="none", reuse="reset")

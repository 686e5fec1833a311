# A None where a text or a record is expected fails the test: that is what the test is for.
# pyright: reportOperatorIssue=false, reportOptionalMemberAccess=false, reportArgumentType=false

"""Used sandboxes are told from fresh ones."""

import asyncio

from excise.action import Observation
from excise.meter.identity import Answer, Host, Lives, question, this_host, understood
from excise.meter.places import Recreate
from excise.meter.trial import Conditions, roll_out
from excise.sandbox import Sandbox
from excise.spec import Spec
from excise.substrates.fake import FakeSubstrate
from excise.substrates.fake.virtual_time import run as virtually
from excise.workloads.t0 import T0

HOST = Host("boot-1", frozenset({"pid:[1]", "mnt:[2]", "net:[3]"}))


def answer(*, mark="", boot="boot-1", began="77", pid=1, mnt=2, net=3):
    text = f"mark {mark}\nboot {boot}\nbegan {began}\npid:[{pid}]\nmnt:[{mnt}]\nnet:[{net}]\n"
    return understood(Observation(stdout=text.encode()), HOST)


def test_a_sandbox_that_shares_everything_has_no_identity():
    assert answer() == Answer()


def test_a_namespaces_number_that_is_used_again_is_another_sandbox_if_its_first_process_is():
    one, two = answer(pid=9, began="100"), answer(pid=9, began="101")
    assert one.identity
    assert two.identity
    assert one != two


def test_only_a_process_id_namespace_tells_when_it_began():
    # Mount namespaces' numbers come again, and the first process is the host's.
    assert answer(mnt=9).identity == ""
    assert answer(pid=9, began="").identity == ""


def test_a_machine_of_its_own_is_known_by_its_boot():
    assert answer(boot="boot-2").identity != answer(boot="boot-3").identity != ""


def test_a_used_sandbox_is_found_by_its_identity_or_its_mark():
    lives = Lives(frozenset({"known"}))
    assert lives.fault(Answer("a")) is None
    assert "same boot, namespaces and first process" in lives.fault(Answer("a"))
    assert "a used one" in lives.fault(Answer("known"))
    assert "earlier rollout's file" in lives.fault(Answer("b", mark="before"))


def test_without_an_identity_nobody_is_accused():
    lives = Lives()
    assert [lives.fault(Answer()) for _ in range(3)] == [None] * 3


class Recycling:
    """Hands out one sandbox again and again, as a pool that does not clean would."""

    address = "recycling"

    def __init__(self):
        self._source = FakeSubstrate()
        self._handle = None

    async def create(self, start, **terms):
        if self._handle is None:
            self._handle = await self._source.create(start, **terms)
        return NeverClosed(self._handle)


class NeverClosed:
    def __init__(self, source):
        self._source = source

    def __getattr__(self, name):
        return getattr(self._source, name)

    async def close(self):
        return None


def test_a_pool_that_does_not_clean_is_caught_by_the_mark():
    async def body():
        place, asked = Recreate(Recycling(), Spec()), Conditions(host=this_host())
        lives = Lives()
        return [lives.fault((await roll_out(place, T0(), asked)).who) for _ in range(2)]

    first, second = virtually(body())
    assert first is None
    assert "is a used one" in second


def test_a_real_sandbox_is_marked_in_its_own_directory_only():
    async def body():
        found = []
        for _ in range(2):
            async with Sandbox("local") as box:
                found.append(understood(await box.run(question("life")), this_host()))
                found.append(understood(await box.run(question("life")), this_host()))
        return found

    assert [one.mark for one in asyncio.run(body())] == ["", "life", "", "life"]

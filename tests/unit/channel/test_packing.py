"""Records cross as they are: bytes, names that are no text, secrets."""

from excise.action import Batch, Exec, FileInfo, Keep, Observation, Read, Shell, Write
from excise.channel import records
from excise.channel.packing import packed
from excise.channel.refusal import Refused, as_exception, refusal
from excise.errors import CapacityError, CreateError, ReadyTimeout, SandboxLost, SpecError, SubstrateError, Unsupported
from excise.spec import Allow, Limits, Secret, Spec, Stage, Step
from excise.substrate import Capabilities, SessionState, Snapshot

SPEC = Spec(
    image="excise/base",
    steps=(Step("one", (Shell("x"), Write("f", b"\0\xff")), Stage.REPO, of="r", switch=(Exec(("a",)),)),),
    env={"A": "ä"},
    network=Allow(("a.example",), (1, 2)),
    build_network="open",
    limits=Limits(memory_bytes=1 << 40, cpus=0.5),
    needs=frozenset({"adopts", "stream"}),
    labels={"x": "y"},
)


def test_what_is_asked_comes_out_as_it_went_in() -> None:
    snapshot = Snapshot(id="s", address="a", spec=SPEC, sessions=(SessionState(name="m", cwd="/"),))
    for asked in (
        records.Probe(),
        records.Create(spec=SPEC, deadline_s=1.5, lease_s=2, labels={}, request_id="r"),
        records.Create(snapshot=snapshot, deadline_s=1.5, lease_s=2, labels={}, request_id="r"),
        records.Run("i", Batch((Exec(("a", "b"), stdin=b"\0", keep=Keep(1, 2)), Read("p", 1, 2)))),
        records.Reset("i", snapshot),
        records.Diff("i", None, contents=True),
    ):
        assert records.asked(packed(asked)) == asked


def test_a_secret_crosses_and_shows_nowhere() -> None:
    spec = Spec(secrets={"TOKEN": Secret("hush")})
    asked = records.Create(spec=spec, deadline_s=1, lease_s=1, labels={}, request_id="r")
    crossed = records.asked(packed(asked))
    assert crossed.spec.secrets["TOKEN"].reveal() == "hush"
    assert "hush" not in repr(crossed)


def test_a_name_that_is_no_text_comes_out_as_it_went_in() -> None:
    name = b"\xff\xfe name".decode("utf-8", "surrogateescape")
    one = FileInfo(name=name, kind="file", size_bytes=1, mode=2, mtime_ns=3, uid=4, gid=5)
    answer = records.Answer(records.Seen(Observation(files=(one,), stdout=b"\xff")), 1, 2)
    assert records.answered(packed(answer)) == answer
    assert records.asked(packed(records.Run("i", Read(name)))).action.path == name


def test_every_error_is_itself_again() -> None:
    for kind in (Unsupported, SpecError, SandboxLost, CapacityError, CreateError, ReadyTimeout, SubstrateError):
        again = as_exception(refusal(kind("why")))
        assert (type(again), str(again)) == (kind, "why")
    again = as_exception(refusal(FileNotFoundError(2, "No such file", "/x")))
    assert isinstance(again, FileNotFoundError)
    assert again.filename == "/x"
    assert isinstance(as_exception(Refused("other", "x")), SandboxLost)


def test_capabilities_cross() -> None:
    able = records.Able("a", Capabilities(snapshot="files", limits=frozenset({"pids"}), adopts=frozenset({"network"})))
    assert records.answered(packed(records.Answer(able))).value == able

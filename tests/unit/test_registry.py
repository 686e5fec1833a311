"""Names to substrates: options become what the factory's annotations say, and what cannot be is one sentence."""

import sys
from pathlib import Path

import pytest

from excise.errors import SpecError, Unsupported
from excise.registry import make, names
from excise.substrates.fake import FakeSubstrate

PLUGIN = """
from typing import Literal
from excise.substrates.fake import FakeSubstrate


class Typed(FakeSubstrate):
    def __init__(
        self,
        *,
        count: int = 0,
        ratio: float = 0.0,
        flag: bool = False,
        mode: Literal["slow", "fast"] = "slow",
        maybe: int | None = None,
        text: str = "",
    ) -> None:
        super().__init__()
        self.got = (count, ratio, flag, mode, maybe, text)


class Bare(FakeSubstrate):
    def __init__(self, place, size="1"):
        super().__init__()
        self.got = (place, size)


def open_ended(**options: str) -> FakeSubstrate:
    made = FakeSubstrate()
    made.got = options
    return made
"""
ENTRY_POINTS = """
[excise.substrates]
typed = a_plugin:Typed
bare = a_plugin:Bare
open-ended = a_plugin:open_ended
gone = a_plugin_that_is_gone:Gone
half = a_plugin:NotThere
local = a_plugin:Typed
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that registers names, as an installer would leave it."""
    (tmp_path / "a_plugin.py").write_text(PLUGIN)
    metadata = tmp_path / "a_plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_plugin", raising=False)


def refusal(address: str) -> str:
    with pytest.raises(SpecError) as refused:
        make(address)
    assert "\n" not in str(refused.value)
    return str(refused.value)


# ---- ours


def test_ours_are_known_without_being_loaded() -> None:
    assert names()[:2] == ("fake", "local")
    assert {"chroot", "command", "bubblewrap", "runc", "docker"} <= set(names())


def test_both_spellings_of_an_option_make_the_same_substrate() -> None:
    assert make("fake:broken=cwd").address == make("fake?broken=cwd").address == "fake?broken=cwd"


def test_options_are_converted() -> None:
    made = make("fake?create_s=0.5&seed=3&broken=cwd")
    assert isinstance(made, FakeSubstrate)
    assert (made.create_s, made.broken) == (0.5, frozenset({"cwd"}))


def test_an_unknown_name_is_refused_and_the_known_are_listed() -> None:
    assert refusal("dokcer").startswith("no substrate is called 'dokcer'; there are: fake, local, chroot, ")


def test_an_unknown_option_is_refused_and_the_known_are_listed() -> None:
    said = refusal("fake?creates=1")
    assert said.startswith("fake has no option 'creates'; its options: action_s, broken, close_s, create_s, ")
    assert "self" not in said
    assert refusal("local?x=1") == "local has no option 'x'; its options: none"


@pytest.mark.parametrize(
    "address", ["fake?create_s=soon", "fake?seed=1.5", "fake?create_s=-1", "fake?lose=2", "fake?create_s=nan"]
)
def test_a_bad_value_is_refused_with_the_option_it_was_for(address: str) -> None:
    assert refusal(address).startswith(address.partition("=")[0] + "=")


def test_an_unknown_promise_is_refused() -> None:
    assert refusal("fake:broken=x") == "no promise is called 'x'; `excise check --list` shows them all"


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("local+guest", "local has no +guest; use local, which takes its own path"),
        ("namespace+guest", "namespace has the guest in every sandbox: leave +guest out"),
    ],
)
def test_what_is_not_built_yet_is_unsupported_and_names_the_remedy(address: str, sentence: str) -> None:
    with pytest.raises(Unsupported) as refused:
        make(address)
    assert str(refused.value) == sentence


def test_an_unknown_name_is_told_before_what_is_not_built() -> None:
    assert refusal("dokcer+guest").startswith("no substrate is called 'dokcer'")


# ---- others'


@pytest.mark.usefixtures("plugin")
def test_others_come_after_ours_each_once() -> None:
    assert names()[-5:] == ("bare", "gone", "half", "open-ended", "typed")
    assert names().count("local") == 1


@pytest.mark.usefixtures("plugin")
def test_a_name_of_ours_stays_ours() -> None:
    assert type(make("local")).__name__ == "LocalSubstrate"


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("options", "got"),
    [
        ("", (0, 0.0, False, "slow", None, "")),
        ("?count=3&ratio=2&flag=true&mode=fast&maybe=4&text=5", (3, 2.0, True, "fast", 4, "5")),
        ("?flag=0&maybe=null&text=", (0, 0.0, False, "slow", None, "")),
    ],
)
def test_options_become_what_the_annotations_say(options: str, got: tuple[object, ...]) -> None:
    assert vars(make(f"typed{options}"))["got"] == got


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("option", ["count=x", "ratio=x", "flag=perhaps", "mode=medium", "maybe=x"])
def test_a_value_of_another_type_is_refused(option: str) -> None:
    assert refusal(f"typed?{option}").startswith(f"typed?{option}: ")


@pytest.mark.usefixtures("plugin")
def test_an_option_without_annotation_is_text() -> None:
    assert vars(make("bare?place=7"))["got"] == ("7", "1")


@pytest.mark.usefixtures("plugin")
def test_a_missing_option_is_asked_for() -> None:
    assert refusal("bare?size=2") == "bare needs the option place: bare?place=..."


@pytest.mark.usefixtures("plugin")
def test_a_factory_may_take_any_option() -> None:
    assert vars(make("open-ended"))["got"] == {}
    assert vars(make("open-ended?a=1&b=x"))["got"] == {"a": "1", "b": "x"}


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("name", ["gone", "half"])
def test_a_plugin_that_cannot_be_loaded_is_one_sentence(name: str) -> None:
    said = refusal(name)
    assert said.startswith(f"the substrate {name!r} cannot be loaded from ")
    assert said.endswith("; install a-plugin again, or remove it")


@pytest.mark.parametrize("address", ["https://host:8700", "http://[::1]:80", "unix:///run/excise.sock", "hosted:local"])
def test_a_remote_host_is_a_substrate_that_nothing_is_asked_of_yet(address: str) -> None:
    assert make(address).address == address


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https://host:8700?a=b", "takes no options"),
        ("https://key@host:8700", "a key in a URL would be in every result and log"),
        ("https://host:8700/path", "leads nowhere"),
        ("https://host:99999", "no number up to 65535"),
        ("unix://relative", "named by its whole path"),
        ("hosted:local?hosted.rtt_ms=-1", "a round trip takes"),
    ],
)
def test_a_url_that_is_no_servers_is_refused_in_a_sentence(address: str, said: str) -> None:
    assert said in refusal(address)

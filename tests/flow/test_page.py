"""The page in a real Chromium: its calculator, its state in the address, phone, dark and print."""

import math

import pytest

import chromium
from excise.report.bundle import write as write_report
from excise.report.sources import read
from excise.stats.projection import Scenario, project, workers
from excise.stats.run import Run
from excise.stats.whatif import difference_s
from made_results import plain_cells, rich_cells, write

STATE = "#actions=50&rollouts=20000&think=2.5&fail=30&deadline=1.5&a=docker+on+t1&b=bubblewrap+on+t2"
LONG = "docker?host=tcp://a-host-with-a-name-that-is-longer-than-a-phone-is-wide.example:2375"


@pytest.fixture(scope="module")
def page(must_work):
    program = chromium.find()
    if program is None:
        must_work("chromium", "no chromium is on PATH; apt-get install chromium")
    assert program is not None
    with chromium.opened(program) as found:
        yield found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return write(tmp_path_factory.mktemp("page") / "r", rich_cells(), failing="bubblewrap")


@pytest.fixture(scope="module")
def address(results):
    out = results.parent / "out"
    write_report(out, *read([results]))
    return f"file://{out}/index.html"


def text(page, name):
    return page.evaluate(f"document.getElementById('calculator-{name}').textContent")


def numbers(told):
    """What a shown estimate says: its value, and the ends of its interval."""
    words = "".join(letter if letter in "0123456789.-" else " " for letter in told.replace(",", "")).split()
    return [float(word) for word in words if word.strip("-.")]


def test_nothing_complains_and_the_usual_numbers_are_there(page, address):
    page.errors.clear()
    page.show(address)
    assert page.errors == []
    assert text(page, "a-name") == "docker on t2"
    assert numbers(text(page, "a-hours"))[0] > 1000
    assert page.evaluate("document.title") == page.evaluate("document.querySelector('title').textContent")


def test_the_address_restores_the_state_and_the_numbers_are_those_of_excise_project(page, address, results):
    page.show(address + STATE)
    fields = page.evaluate("Object.fromEntries(new FormData(document.getElementById('calculator-form')))")
    assert fields == {
        "a": "docker on t1",
        "b": "bubblewrap on t2",
        "actions": "50",
        "rollouts": "20000",
        "think": "2.5",
        "fail": "30",
        "deadline": "1.5",
    }
    run = Run.read(results)
    scenario = Scenario(actions=50, rollouts=20000, think_s=2.5, failure_rate=0.3)
    first, second = run.row(address="docker", workload="t1").costs, run.row(address="bubblewrap", workload="t2").costs
    assert first is not None
    assert second is not None
    for name, one in (("a", first), ("b", second)):
        found = project(one, scenario)
        for shown, known in ((text(page, f"{name}-time"), found.total_s), (text(page, f"{name}-hours"), found.hours)):
            assert numbers(shown)[:3] == pytest.approx([known.value, known.low, known.high], rel=5e-3)
        assert numbers(text(page, f"{name}-workers")) == [workers(found.total_s, 20000, 1.5 * 3600).value]
    more = difference_s(first, second, scenario)
    assert more is not None
    hours = more.scaled(20000 / 3600)
    assert numbers(text(page, "difference")) == pytest.approx([hours.value, hours.low, hours.high], rel=5e-3, abs=6e-3)


def test_typing_changes_the_numbers_and_the_address(page, address):
    page.show(address)
    before = text(page, "a-hours")
    page.evaluate("const field = document.querySelector('[name=rollouts]'); field.focus(); field.select()")
    page.type("2000000")
    assert numbers(text(page, "a-hours"))[0] == pytest.approx(2 * numbers(before)[0], rel=1e-2)
    assert "rollouts=2000000" in page.evaluate("location.hash")
    page.show(page.evaluate("location.href"))
    assert numbers(text(page, "a-hours"))[0] == pytest.approx(2 * numbers(before)[0], rel=1e-2)


def test_a_field_without_a_number_is_marked_and_nothing_else_happens(page, address):
    page.show(address)
    before = text(page, "a-hours")
    page.evaluate("const field = document.querySelector('[name=fail]'); field.focus(); field.select()")
    page.type("100")
    assert page.evaluate("document.querySelector('[name=fail]').getAttribute('aria-invalid')") == "true"
    assert page.evaluate("document.getElementById('calculator-wrong').hidden") is False
    assert text(page, "a-hours") == before
    assert page.evaluate("location.hash") == ""


def test_an_address_of_nonsense_leaves_the_usual(page, address):
    page.errors.clear()
    page.show(address + "#actions=many&a=%3Cscript%3E&deadline=&think=NaN")
    assert page.errors == []
    assert text(page, "a-name") == "docker on t2"
    page.show(address + "#method")
    assert text(page, "a-name") == "docker on t2"


@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_is_wider_than_the_window(page, address, width, dark):
    page.show(address, width, dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    script = """[...document.querySelectorAll('.picture svg text')].filter((one) => {
        const box = one.getBoundingClientRect(), around = document.documentElement;
        return box.width && (box.left < -1 || box.right > around.clientWidth + 1);
    }).map((one) => one.textContent)"""
    assert page.evaluate(script) == []


def test_a_long_address_does_not_widen_a_phones_page(page, tmp_path):
    write_report(tmp_path / "out", *read([write(tmp_path / "r", plain_cells(("chroot", "docker", LONG)))]))
    page.show(f"file://{tmp_path}/out/index.html", 360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert LONG in page.evaluate("document.body.textContent")


def brightness(page, script):
    red, green, blue = numbers(page.evaluate(script))[:3]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_figures_follow_into_the_dark_and_print_is_light(page, address):
    paper = "getComputedStyle(document.body).backgroundColor"
    label = "getComputedStyle(document.querySelector('#ladder .wide text')).fill"
    page.show(address)
    light = brightness(page, paper), brightness(page, label)
    assert light[0] > 200
    assert light[1] < 130
    page.show(address, dark=True)
    assert brightness(page, paper) < 60
    assert brightness(page, label) > 130
    page.media("print")
    assert (brightness(page, paper), brightness(page, label)) == light
    assert page.evaluate("getComputedStyle(document.getElementById('calculator')).display") == "none"


def test_in_print_every_table_fits_its_sheet(page, address):
    wider = """(most) => [...document.querySelectorAll('.scroll table')].filter((one) => one.getBoundingClientRect().width
        > most(one.closest('section').id)).map((one) => one.closest('section').id)"""
    for width, sections in ((1047, "rows"), (717, "")):  # A4 on its side, which #rows asks for, and upright, in CSS pixels
        page.show(address, width)
        page.media("print")
        asked = f"({wider})((name) => (name === 'rows') === {str(sections == 'rows').lower()} ? {width} : Infinity)"
        assert page.evaluate(asked) == []
    page.show(address, 717)
    page.media("print")
    assert page.evaluate("getComputedStyle(document.getElementById('rows')).page") == "wide"


def test_a_phone_sees_the_narrow_drawing_and_a_wide_window_the_other(page, address):
    shown = "[...document.querySelectorAll('#ladder .picture')].map((one) => getComputedStyle(one).display)"
    page.show(address, 360)
    assert page.evaluate(shown) == ["none", "block"]
    page.show(address, 1000)
    assert page.evaluate(shown) == ["block", "none"]


def test_the_keyboard_reaches_the_calculator_in_order(page, address):
    page.show(address)
    page.evaluate("document.querySelector('#break-even .scroll').focus()")
    seen = []
    for _ in range(12):
        page.press("Tab", 9)
        seen.append(page.evaluate("document.activeElement.name || document.activeElement.tagName"))
    reached = [name for name in seen if name in ("a", "b", "actions", "rollouts", "think", "fail", "deadline")]
    assert reached == ["a", "b", "actions", "rollouts", "think", "fail", "deadline"]


def test_words_have_enough_contrast(page, address):
    for dark in (False, True):
        page.show(address, dark=dark)
        paper = _luminance(page, "getComputedStyle(document.body).backgroundColor")
        for words in ("body", "figcaption", ".notes"):
            ink = _luminance(page, f"getComputedStyle(document.querySelector('{words}')).color")
            high, low = max(paper, ink), min(paper, ink)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (words, dark)


def _luminance(page, script):
    linear = [
        (c / 12.92 if c <= 0.03928 else math.pow((c + 0.055) / 1.055, 2.4))
        for c in (x / 255 for x in numbers(page.evaluate(script))[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

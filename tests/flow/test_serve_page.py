"""The server's page in a real Chromium: the key, live figures, a waterfall, phone-sized, nothing from elsewhere."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import chromium
import served
from excise.api import connect
from excise.sandbox import Sandbox

_LIMIT_S = 60.0
CALLS = "[...document.querySelectorAll('.card')].find(c => c.innerText.includes('calls')).querySelector('b').textContent"


@pytest.fixture(scope="module")
def page(must_work: Callable[[str, str], None]) -> Generator[chromium.Page]:
    program = chromium.find()
    if program is None:
        must_work("chromium", "no chromium is on PATH; apt-get install chromium")
    assert program is not None
    with chromium.opened(program) as found:
        yield found


@pytest.fixture(scope="module")
def server(runs_here: Callable[[str], None], tmp_path_factory: pytest.TempPathFactory) -> Generator[served.Served]:
    runs_here("namespace")
    place = tmp_path_factory.mktemp("page")
    report = place / "report"
    report.mkdir()
    (report / "index.html").write_text("<!doctype html><title>r</title><p>the latest report")
    words = ("--report", str(report), "--drain", "0s")
    with served.serving(place, *words, address="pool:namespace?pool.count=8&pool.pressure=0") as found:
        yield found


@pytest.fixture(scope="module")
def busy(server: served.Served) -> Generator[str]:
    """A client with a sandbox in which something is done again and again; its id."""
    stop, ids = threading.Event(), list[str]()

    async def main() -> None:
        async with connect(server.url) as substrate, Sandbox(substrate) as box:
            await box.run("exit 3")
            ids.append(box.id)
            while not stop.is_set():
                await box.run("true", session="main")
                await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    while not ids and thread.is_alive():
        time.sleep(0.02)
    yield ids[0]
    stop.set()
    thread.join()


def until(page: chromium.Page, script: str) -> Any:
    """What the script gives once it is anything."""
    deadline = time.monotonic() + _LIMIT_S
    while not (found := page.evaluate(script)):
        assert time.monotonic() < deadline, (script, page.evaluate("document.body.innerText"))
        time.sleep(0.05)
    return found


def come_in(page: chromium.Page, server: served.Served, key: str, width: int = 1000) -> None:
    page.show(server.url, width=width)
    page.evaluate("sessionStorage.clear()")
    page.show(server.url, width=width)
    until(page, "!document.getElementById('door').hidden")
    page.evaluate("document.getElementById('key').focus()")
    page.type(key)
    page.press("Enter", 13)
    page.evaluate("document.getElementById('door').requestSubmit()")


def test_a_wrong_key_sees_nothing(page: chromium.Page, server: served.Served) -> None:
    come_in(page, server, "xk_wrong")
    until(page, "document.getElementById('refused').textContent.includes('does not know')")
    assert page.evaluate("document.getElementById('inside').hidden")


def test_it_shows_what_is_there_and_keeps_up(page: chromium.Page, server: served.Served, busy: str) -> None:
    page.errors.clear()
    come_in(page, server, server.key)
    until(page, "!document.getElementById('inside').hidden")
    assert until(page, "document.getElementById('rows').innerText").startswith(busy)
    shown = page.evaluate("document.getElementById('inside').innerText")
    for words in ("pool:namespace", "key local", "action p50 / p95", "hit rate of", "places in use"):
        assert words in shown
    before = int(until(page, CALLS))
    until(page, f"+{CALLS} > {before}")
    page.evaluate("document.querySelector('#rows button').click()")
    bars = until(page, "document.querySelectorAll('#fall rect').length")
    assert bars >= 3
    assert page.evaluate("document.querySelectorAll('#fall rect.bad').length") >= 1  # exit 3
    assert until(page, "document.getElementById('report').src").startswith("blob:")
    assert page.errors == []


def test_it_fits_a_phone(page: chromium.Page, server: served.Served, busy: str, tmp_path: Path) -> None:
    come_in(page, server, server.key, width=360)
    until(page, "document.getElementById('rows').innerText")
    page.evaluate("document.querySelector('#rows button').click()")
    until(page, "document.querySelectorAll('#fall rect').length")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_it_loads_nothing_from_elsewhere(server: served.Served) -> None:
    source = (Path(served.__file__).parent.parent / "src/excise/server/page.html").read_text()
    assert "http://" not in source.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in source

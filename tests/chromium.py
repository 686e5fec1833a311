"""A real Chromium for tests of pages, over its debugging pipe: no port, no driver, nothing but the browser itself."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
_ANSWER_S = 60.0


def find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. `evaluate` runs JavaScript in it; `errors` are what its console and its scripts complained of."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, from_browser
        self._last, self._pending, self._session = 0, b"", ""
        self.errors: list[str] = []
        self._loaded, self._scheme = 0, "light"

    def _attach(self) -> Self:
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def show(self, address: str, width: int = 1000, height: int = 800, *, dark: bool = False) -> None:
        """Open `address` afresh in a window of that size, and wait for it."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", size)
        self._scheme = "dark" if dark else "light"
        self.media("screen")
        self._open("about:blank")  # else another fragment of the same page would not load it again
        self._open(address)

    def _open(self, address: str) -> None:
        before = self._loaded
        self._call("Page.navigate", {"url": address})
        while self._loaded == before:
            self._read()

    def media(self, name: str) -> None:
        """`screen` or `print`, in light or dark as before."""
        scheme = {"name": "prefers-color-scheme", "value": self._scheme}
        self._call("Emulation.setEmulatedMedia", {"media": name, "features": [scheme]})

    def evaluate(self, script: str) -> Any:
        answer = self._call("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code})

    def type(self, text: str) -> None:
        self._call("Input.insertText", {"text": text})

    def _call(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        self._last += 1
        number = self._last
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters or {}}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == number:
                assert "error" not in found, f"{method}: {found['error']}"
                return found["result"]

    def _read(self) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        until = time.monotonic() + _ANSWER_S
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            data = os.read(self._in, 1 << 16) if ready else b""
            assert data, "Chromium does not answer"
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\0")
        message = json.loads(line)
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded += 1
            case "Runtime.exceptionThrown":
                self.errors.append(str(message["params"]["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if message["params"]["type"] in ("error", "warning", "assert"):
                self.errors.append(str(message["params"]["args"]))
            case "Log.entryAdded" if message["params"]["entry"]["level"] in ("error", "warning"):
                self.errors.append(message["params"]["entry"]["text"])
        return message


def _high(pipe: tuple[int, int]) -> tuple[int, int]:
    """The same pipe out of the way of the descriptors that the browser expects its own on."""
    first, second = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pipe)
    for end in pipe:
        os.close(end)
    return first, second


@contextlib.contextmanager
def opened(program: str) -> Generator[Page]:
    """A browser with a profile of its own; it and all of its processes have ended when this ends."""
    profile = tempfile.mkdtemp(prefix="excise-chromium-")
    browser_in, to_browser = _high(os.pipe())
    from_browser, browser_out = _high(os.pipe())
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions"]
    quiet = ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
    # The browser expects its pipe on descriptors 3 and 4; a shell puts it there.
    script = f'exec "$@" 3<&{browser_in} 4>&{browser_out}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", program, *flags, *quiet, f"--user-data-dir={profile}"],
        pass_fds=(browser_in, browser_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(browser_in)
    os.close(browser_out)
    try:
        yield Page(to_browser, from_browser)._attach()
    finally:
        os.close(to_browser)
        os.close(from_browser)
        for one in _session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(one, signal.SIGKILL)
            select.select([one], [], [], _ANSWER_S)
            os.close(one)
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _session(leader: int) -> Generator[int]:
    """A descriptor of each process that the browser started, itself included: some have groups of their own."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            session = int(entry.read_text().rpartition(")")[2].split()[3])
            if session == leader:
                yield os.pidfd_open(int(entry.parent.name))

"""Saved machines that nobody begins with any more are collected; others stay."""

import os
import time
from pathlib import Path

import pytest

from excise.substrates.microvm import templates
from excise.vmm.kept import place


def test_one_that_nobody_used_for_days_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXCISE_HOME", str(tmp_path / "home"))
    for name in ("template-old", "template-new", "disk-old"):
        (place(name)).mkdir()
    long_ago_s = time.time() - templates.UNUSED_S - 60
    for name in ("template-old", "disk-old"):
        os.utime(place(name), (long_ago_s, long_ago_s))
    assert templates.collect() == ("template-old",)
    assert sorted(path.name for path in place().iterdir()) == ["disk-old", "template-new"]

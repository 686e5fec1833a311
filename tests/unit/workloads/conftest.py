import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from excise.errors import SpecError, SubstrateError
from excise.storage.home import cache_dir
from excise.storage.image import resolve
from excise.workloads.seed import RECIPES, built


@pytest.fixture(scope="session")
def cache(must_work: Callable[[str, str], None]) -> Path:
    """The user's own cache with the seed repositories in it, as images are: they outlive the tests."""
    place = cache_dir()
    try:
        for recipe in RECIPES.values():
            built(recipe, place)
    except SubstrateError as error:
        must_work("index", str(error))
    return place


@pytest.fixture(scope="session")
def has_tools(must_work: Callable[[str, str], None]) -> None:
    """What an agent needs in the host's own /usr."""
    for tool in ("python3", "git"):
        if shutil.which(tool, path="/usr/bin:/bin") is None:
            must_work(tool, "it is not installed in /usr/bin")


@pytest.fixture(scope="session")
def base(must_work: Callable[[str, str], None]) -> None:
    """excise/base is built here."""
    try:
        asyncio.run(resolve("excise/base"))
    except SpecError as error:
        must_work("base", str(error))

"""T1: a repository that is there already, and simple inspection of it, search by syntax tree included."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from excise.action import Exec, Shell, Write
from excise.errors import SpecError
from excise.spec import Spec, Stage, Step
from excise.workloads import commands
from excise.workloads.seed import BUNDLE, RECIPES, Recipe, Seed, built
from excise.workloads.workload import Requirement, Turn

ENV = {
    # The user's own settings must not change the work where a substrate shares the host's files.
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONNOUSERSITE": "1",
}


class OnSeed:
    """What every workload over the seed repository shares: the repository is built before the first rollout."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._seed: Seed | None = None
        self._bundle = b""

    @asynccontextmanager
    async def hosted(self, cache: Path) -> AsyncGenerator[None]:
        self._seed = await asyncio.to_thread(built, self.recipe, cache)
        self._bundle = self._seed.bundle()
        yield

    @property
    def seed(self) -> Seed:
        if self._seed is None:
            raise RuntimeError("the seed repository is not built yet: use the workload inside `async with hosted(...)`")
        return self._seed

    def requirements(self) -> tuple[Requirement, ...]:
        return tuple(
            Requirement(
                Exec((tool, "--version"), timeout_s=60), f"the image has no {tool}, which agents need; excise/base has it"
            )
            for tool in ("git", "python3")
        )

    def upload(self) -> Step:
        """The repository as one file in the sandbox's working directory."""
        return Step("repository", (self._write(),), Stage.REPO)

    def preload(self) -> Step:
        """The working directory as the repository, at its commit."""
        script = Shell(commands.preload(self.recipe, BUNDLE), timeout_s=commands.TIMEOUT_S)
        return Step("repository", (self._write(), script), Stage.REPO)

    def _write(self) -> Write:
        assert self.seed is not None
        return Write(BUNDLE, self._bundle)


class T1(OnSeed):
    """`actions` inspections in turn; the clone is part of the start state."""

    def __init__(self, actions: int = 10) -> None:
        if actions < 1:
            raise SpecError(f"actions={actions}: a rollout has at least one action")
        super().__init__(RECIPES["a"])
        self._actions = actions

    @property
    def name(self) -> str:
        return "t1" if self._actions == 10 else f"t1?actions={self._actions}"

    def spec(self, image: str) -> Spec:
        return Spec(image=image, env=ENV, steps=(self.preload(),))

    def turns(self, nonce: str) -> tuple[Turn, ...]:
        site, known = commands.Site(self.recipe, "."), commands.INSPECT
        return tuple(known[index % len(known)](site, f"{nonce}-{index}") for index in range(self._actions))

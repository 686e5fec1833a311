"""T2: clone at the buggy commit, inspect, patch, test. At greater lengths a fixed mix of an agent's other actions between."""

import random
from collections.abc import Mapping, Sequence
from typing import Literal

from excise.action import Exec
from excise.errors import SpecError
from excise.spec import Spec
from excise.workloads import commands
from excise.workloads.commands import Command, Runner
from excise.workloads.seed import BUNDLE, RECIPES
from excise.workloads.t1 import ENV, OnSeed
from excise.workloads.workload import Requirement, Turn

DIRECTORY = "attrs"
"""Where the clone goes."""
SHORTEST = 10
_TESTS = "tests"
MIX: Mapping[str, int] = {"inspect": 40, "execute": 30, "modify": 20, _TESTS: 10}
"""Percent of the actions beyond the first ten, by kind."""


class T2(OnSeed):
    """Ten actions from clone to a passing test, or more with others in their midst; the same ones in every trial."""

    def __init__(
        self,
        actions: int = SHORTEST,
        runner: Runner = "pytest",
        bug: Literal["a", "b"] = "a",
        preloaded: bool = False,
    ) -> None:
        """`preloaded`: the repository is part of the start state, and a checkout stands in for the clone."""
        if actions < SHORTEST:
            raise SpecError(
                f"actions={actions}: clone, inspect, patch and test are {SHORTEST} actions; give at least that many"
            )
        super().__init__(RECIPES[bug])
        self._options = {"actions": actions, "runner": runner, "bug": bug, "preloaded": str(preloaded).lower()}
        self._runner: Runner = runner
        self._preloaded = preloaded
        self._middle = middle(actions - SHORTEST)
        self._site = commands.Site(self.recipe, "." if preloaded else DIRECTORY)

    @property
    def name(self) -> str:
        usual = {"actions": SHORTEST, "runner": "pytest", "bug": "a", "preloaded": "false"}
        options = "&".join(f"{key}={value}" for key, value in self._options.items() if value != usual[key])
        return self._named + (f"?{options}" if options else "")

    _named = "t2"

    def spec(self, image: str) -> Spec:
        return Spec(image=image, env=ENV, steps=(self.preload() if self._preloaded else self.upload(),))

    def requirements(self) -> tuple[Requirement, ...]:
        needed = {"plain": (), "pytest": ("pytest",), "conftest": ("pytest", "hypothesis")}[self._runner]
        instead = f"{self._named}?runner=plain needs none" + (", and excise/base has it" if self._runner == "pytest" else "")
        return (
            *super().requirements(),
            *(
                Requirement(Exec(("python3", "-c", f"import {module}"), timeout_s=60), f"the image has no {module}; {instead}")
                for module in needed
            ),
        )

    def _begin(self, word: str) -> Turn:
        return commands.checkout(self._site, word) if self._preloaded else commands.clone(self._site, word, BUNDLE)

    def turns(self, nonce: str) -> tuple[Turn, ...]:
        site, words = self._site, [f"{nonce}-{index}" for index in range(SHORTEST + len(self._middle))]
        patch, patched, tested = words[-3:]
        first = (commands.ls, commands.log, commands.grep, commands.sed, commands.search)
        return (
            self._begin(words[0]),
            *(command(site, word) for command, word in zip(first, words[1:6], strict=True)),
            commands.run_test(site, words[6], self._runner, passes=False),
            *(self._turn(kind, number, word) for (kind, number), word in zip(self._middle, words[7:-3], strict=True)),
            commands.write_patch(self.seed.patch(), patch),
            commands.apply_patch(site, patched, written=patch),
            commands.run_test(site, tested, self._runner, passes=True),
        )

    def _turn(self, kind: str, number: int, word: str) -> Turn:
        known: Mapping[str, Sequence[Command]] = {
            "inspect": commands.INSPECT,
            "execute": commands.EXECUTE,
            "modify": commands.MODIFY,
        }
        if kind == _TESTS:
            return commands.run_test(self._site, word, self._runner, passes=False)
        return known[kind][number % len(known[kind])](self._site, word)


def middle(count: int) -> tuple[tuple[str, int], ...]:
    """`count` actions as kind and number within the kind, in the mix's proportions, in an order that is always the same."""
    exact = {kind: count * percent / 100 for kind, percent in MIX.items()}
    counts = {kind: int(share) for kind, share in exact.items()}
    # What rounding left over goes to the kinds that lost most by it.
    for kind in sorted(exact, key=lambda one: counts[one] - exact[one])[: count - sum(counts.values())]:
        counts[kind] += 1
    kinds = [kind for kind, times in counts.items() for _ in range(times)]
    random.Random(f"t2:{count}").shuffle(kinds)  # noqa: S311 - an order, not a secret
    seen = dict.fromkeys(MIX, 0)
    placed: list[tuple[str, int]] = []
    for kind in kinds:
        placed.append((kind, seen[kind]))
        seen[kind] += 1
    return tuple(placed)

"""How near one state is to another: the steps that lead from what a sandbox holds to what is wanted, if any do.

Equal steps are done. A sibling (another commit of the same repository) becomes the wanted one by its `switch`; from there on
only what names an equal lock, or has a switch of its own, can stay. The rest was made upon another commit, and what a step left
behind cannot be taken back.
"""

from typing import Literal

from excise.spec import Stage, Step
from excise.substrates.pool.state import State, deepest

Depth = Literal["deps", "repo", "sibling", "image", "base"]
"""What a claim found: how deep the sandbox was, or that it held a sibling."""


def plan(have: State, want: State) -> tuple[Step, ...] | None:
    """What is still to be run in a sandbox that holds `have`, in order; None if nothing leads from there to `want`."""
    done = len(have.steps)
    if done > len(want.steps) or have.family != want.families[done]:
        return None
    return path(have, want)


def path(have: State, want: State) -> tuple[Step, ...]:
    """`plan` for states of which it is known that one leads to the other."""
    return (*switches(have, want), *want.steps[len(have.steps) :])


def switches(have: State, want: State) -> tuple[Step, ...]:
    """What leads from `have` to the beginning of `want` that is as long: nothing if it is that."""
    done = len(have.steps)
    if have.key == want.keys[done]:
        return ()
    made: list[Step] = []
    for index, step in enumerate(want.steps[:done]):
        same = have.digests[index] == want.digests[index]
        # Before the first sibling all is equal; above it, what depends on its lock alone.
        if not (same and (step.lock is not None or have.keys[index + 1] == want.keys[index + 1])):
            made.append(switch_of(step))
    return tuple(made)


def switch_of(step: Step) -> Step:
    """The step that leads from a sibling to `step`. It is run in the one sandbox: nothing of it is kept for others."""
    return Step(step.name, step.switch, step.stage, share=False, of=step.of)


def is_switch(step: Step) -> bool:
    return bool(step.of) and not step.switch


def depth(have: State, want: State) -> Depth:
    """The name of a hit on `have` for `want`. Base: the image alone, where steps of the image's own are still to be run."""
    done = len(have.steps)
    if have.key != want.keys[done]:
        return "sibling"
    if done == 0:
        return "base" if any(step.stage in (Stage.BASE, Stage.IMAGE) for step in want.steps) else "image"
    return deepest(have.steps).value

"""What leads from one state to another: by a small model of what steps leave behind, for every row of steps."""

from hypothesis import example, given
from hypothesis import strategies as st

from excise.action import Shell
from excise.spec import Spec, Stage, Step
from excise.substrates.pool.closeness import depth, is_switch, plan, switch_of
from excise.substrates.pool.state import State, has_siblings, state_of


def clone(repository: str, commit: int) -> Step:
    script = f"{repository}@{commit}"
    return Step("repo", (Shell(script),), Stage.REPO, of=repository, switch=(Shell(f"to {script}"),))


def plain(name: str) -> Step:
    return Step(name, (Shell(name),))


def locked(name: str, lock: int) -> Step:
    return Step(name, (Shell(name),), lock=str(lock))


def state(*steps: Step, image: str = "image", env: str = "") -> State:
    return state_of(Spec(image=image, steps=steps, env={"E": env} if env else {}))


# Pieces by their place in a row, so that two rows often have much in common.
PIECES = [
    st.sampled_from([plain("apt"), plain("dnf")]),
    st.builds(clone, st.just("r0"), st.integers(1, 2)),
    st.one_of(st.builds(locked, st.just("deps"), st.integers(1, 2)), st.just(plain("deps"))),
    st.builds(clone, st.just("r1"), st.integers(1, 2)),
    st.one_of(st.builds(locked, st.sampled_from("lm"), st.integers(1, 2)), st.sampled_from([plain("p"), plain("q")])),
]


@st.composite
def rows(draw: st.DrawFn) -> tuple[Step, ...]:
    return tuple(draw(piece) for piece in PIECES if draw(st.booleans()))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[State, State]:
    """Mostly a beginning of what is wanted, with some of its pieces drawn anew."""
    want = draw(rows())
    have = list(want[: draw(st.integers(0, len(want)))])
    if draw(st.booleans()):
        have = [draw(piece) if draw(st.booleans()) else step for step in have for piece in PIECES if _is_of(piece, step)]
    return state(*have), state(*want)


def _is_of(piece: st.SearchStrategy[Step], step: Step) -> bool:
    place = {"apt": 0, "dnf": 0, "deps": 2}.get(step.name, 4) if not step.of else 1 if step.of == "r0" else 3
    return PIECES[place] is piece


World = dict[object, object]


def run(world: World, steps: tuple[Step, ...]) -> World:
    """What is in a sandbox after `steps`: a repository depends on those cloned before it, a step with a lock on that, others on
    all that is there when they run. Nothing that was left is ever taken away."""
    for step in steps:
        (action,) = step.actions
        assert isinstance(action, Shell)
        if step.of:
            before = {of: held for of, held in world.items() if isinstance(of, str) and of < step.of}
            world = {**world, step.of: (action.script.removeprefix("to "), repr(before))}
        elif step.lock is not None:
            world = {**world, ("locked", action.script): step.lock}
        else:
            world = {**world, ("plain", action.script): repr(sorted(map(repr, world.items())))}
    return world


@given(pairs())
@example((state(clone("r0", 1), locked("deps", 1)), state(clone("r0", 2), locked("deps", 1))))
@example((state(clone("r0", 1), clone("r1", 1)), state(clone("r0", 2), clone("r1", 1))))
def test_a_plan_leads_to_what_is_wanted(pair: tuple[State, State]) -> None:
    have, want = pair
    steps = plan(have, want)
    if steps is not None:
        assert run(run({}, have.steps), steps) == run({}, want.steps)


@given(pairs())
def test_there_is_a_plan_wherever_the_model_allows_one(pair: tuple[State, State]) -> None:
    """Switch what differs in what has siblings, run the rest: if that leads there in the model, it is planned."""
    have, want = pair
    done = len(have.steps)
    below = list(zip(have.steps, want.steps[:done], strict=False))
    alike = all(a == b or (a.of == b.of and has_siblings(b)) for a, b in below)
    moved = tuple(switch_of(b) for _, b in below if b.of)
    if alike and run(run(run({}, have.steps), moved), want.steps[done:]) == run({}, want.steps):
        assert plan(have, want) is not None


@given(rows())
def test_nothing_leads_from_a_state_to_itself_and_the_rest_from_its_beginnings(row: tuple[Step, ...]) -> None:
    want = state(*row)
    for count in range(len(row) + 1):
        assert plan(want.upto(count), want) == row[count:]
        if count < len(row):
            assert plan(want, want.upto(count)) is None


@given(pairs())
def test_nothing_leads_across_images_or_environments(pair: tuple[State, State]) -> None:
    have, want = pair
    assert plan(have, state(*want.steps, image="another")) is None
    assert plan(have, state(*want.steps, env="another")) is None


@given(pairs())
def test_there_is_a_plan_if_and_only_if_the_families_say_so(pair: tuple[State, State]) -> None:
    have, want = pair
    fits = len(have.steps) <= len(want.steps) and have.family == want.families[len(have.steps)]
    assert (plan(have, want) is not None) is fits


@given(pairs())
def test_what_has_no_lock_never_stays_over_a_sibling(pair: tuple[State, State]) -> None:
    have, want = pair
    differ = next((index for index, key in enumerate(have.keys) if key not in want.keys), None)
    if differ is not None and any(step.lock is None and not step.of for step in have.steps[differ - 1 :]):
        assert plan(have, want) is None


def test_a_sibling_becomes_the_wanted_commit_by_its_switch_alone_if_the_lock_is_equal() -> None:
    url = "https://host/x.git"
    have = state_of(Spec(repo=f"{url}@1", deps="install", lock="l"))
    want = Spec(repo=f"{url}@2", deps="install", lock="l")
    steps = plan(have, state_of(want))
    assert steps is not None
    (step,) = steps
    assert step.actions == want.all_steps()[0].switch
    assert not step.share
    assert is_switch(step)
    assert plan(have, state_of(Spec(repo=f"{url}@2", deps="install", lock="m"))) is None
    assert plan(have, state_of(Spec(repo=f"{url}@2", deps="install"))) is None
    assert plan(state_of(Spec(repo=f"{url}@1", deps="install")), state_of(Spec(repo=f"{url}@2", deps="install"))) is None
    bare = state_of(Spec(repo=f"{url}@1"))
    assert [is_switch(step) for step in plan(bare, state_of(want)) or ()] == [True, False]


def test_a_hit_is_named_by_how_deep_it_is() -> None:
    image = Step("packages", (Shell("apt"),), Stage.IMAGE)
    want = state(image, clone("r0", 1), locked("deps", 1))
    assert [depth(want.upto(count), want) for count in range(4)] == ["base", "image", "repo", "deps"]
    assert depth(state(image, clone("r0", 2)), want) == "sibling"
    assert depth(state(image, clone("r0", 2), locked("deps", 1)), want) == "sibling"
    alone = state(clone("r0", 1))
    assert depth(alone.upto(0), alone) == "image"
    assert depth(state(), state()) == "image"

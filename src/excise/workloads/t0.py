"""T0, minimal commands: what is left when the work is almost nothing is the tax."""

from excise.action import Batch, Exec, Read, Shell, Write
from excise.errors import SpecError
from excise.spec import Spec
from excise.workloads.workload import Expect, Turn

TIMEOUT_S = 60.0


class T0:
    """`actions` actions in turn: a program, a shell script, a file written and the same file read back.

    `batch`: so many of them go in one round trip.
    """

    def __init__(self, actions: int = 10, batch: int = 1) -> None:
        if actions < 1:
            raise SpecError(f"actions={actions}: a rollout has at least one action")
        if batch < 1:
            raise SpecError(f"batch={batch}: a batch has at least one action")
        self._actions = actions
        self._batch = batch

    @property
    def name(self) -> str:
        given = {"actions": (self._actions, 10), "batch": (self._batch, 1)}
        said = "&".join(f"{key}={value}" for key, (value, usual) in given.items() if value != usual)
        return f"t0?{said}" if said else "t0"

    def spec(self, image: str) -> Spec:
        return Spec(image=image)

    def turns(self, nonce: str) -> tuple[Turn, ...]:
        turns = tuple(_turn(index, f"{nonce}-{index}") for index in range(self._actions))
        if self._batch == 1:
            return turns
        return tuple(_batch(turns[at : at + self._batch]) for at in range(0, len(turns), self._batch))


def _batch(turns: tuple[Turn, ...]) -> Turn:
    actions = tuple(turn.action for turn in turns if not isinstance(turn.action, Batch))
    return Turn(Batch(actions), Expect(parts=tuple(turn.expect for turn in turns)))


def _turn(index: int, word: str) -> Turn:
    match index % 4:
        case 0:
            return Turn(Exec(("echo", word), timeout_s=TIMEOUT_S), Expect(stdout=f"{word}\n".encode()))
        case 1:
            script = f'word={word}; test -n "$word" && printf %s "$word"'
            return Turn(Shell(script, timeout_s=TIMEOUT_S), Expect(stdout=word.encode()))
        case 2:
            return Turn(Write(_path(word), word.encode()))
        case _:
            # Read what the action before this one wrote.
            before = f"{word.rpartition('-')[0]}-{index - 1}"
            return Turn(Read(_path(before)), Expect(stdout=before.encode()))


def _path(word: str) -> str:
    """In the sandbox's own working directory: `local` shares /tmp with the host."""
    return f"t0-{word}.txt"

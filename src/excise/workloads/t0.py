"""T0, minimal commands: what is left when the work is almost nothing is the tax."""

from excise.action import Exec, Read, Shell, Write
from excise.errors import SpecError
from excise.spec import Spec
from excise.workloads.workload import Expect, Turn

TIMEOUT_S = 60.0


class T0:
    """`actions` actions in turn: a program, a shell script, a file written and the same file read back."""

    def __init__(self, actions: int = 10) -> None:
        if actions < 1:
            raise SpecError(f"actions={actions}: a rollout has at least one action")
        self._actions = actions

    @property
    def name(self) -> str:
        return "t0" if self._actions == 10 else f"t0?actions={self._actions}"

    def spec(self, image: str) -> Spec:
        return Spec(image=image)

    def turns(self, nonce: str) -> tuple[Turn, ...]:
        return tuple(_turn(index, f"{nonce}-{index}") for index in range(self._actions))


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

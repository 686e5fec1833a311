"""Same work: what every trial of a workload must answer, wherever it runs."""

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from excise.action import Observation
from excise.workloads.workload import Expect, Turn

_DIGITS = 12
_CONFIRMATIONS = 2
"""How often the witness is asked again about one answer; after that the answer is settled."""


def digests(turns: Sequence[Turn], seen: Sequence[Observation], nonce: str) -> tuple[str, ...]:
    """One short digest an answer: how it ended, its code and, unless the workload judges that itself, its output."""
    return tuple(_digest(turn.expect, one, nonce.encode()) for turn, one in zip(turns, seen, strict=True))


def _digest(expect: Expect, seen: Observation, nonce: bytes) -> str:
    judged = expect.stdout is not None or expect.sha256 is not None or expect.pattern is not None
    output = b"" if judged else seen.stdout.replace(nonce, b"NONCE")
    names = ",".join(one.name for one in seen.files).encode()
    parts = (seen.end.value.encode(), str(seen.exit_code).encode(), output, names)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:_DIGITS]


class Sameness:
    """Judges answers by those of one witness, which are known before the first trial.

    Some answers are the same nowhere twice (the time a test took). So who differs is judged only after the witness was asked
    again: if it differs from itself, the answer is nobody's fault, and is not compared any more.
    """

    def __init__(
        self, standard: Mapping[str, Sequence[str]], ask: Callable[[str], Awaitable[Sequence[str]]], witness: str = ""
    ) -> None:
        """`standard`: by workload, one digest an action, "" where it is not compared; `ask` the witness for its own again."""
        self._standard = {workload: list(found) for workload, found in standard.items()}
        self._ask = ask
        self._witness = witness
        self._confirmed: Counter[tuple[str, int]] = Counter()

    async def fault(self, workload: str, answers: Sequence[str]) -> str | None:
        """Why a rollout with these answers did other work than the witness, or None."""
        standard = self._standard.get(workload, [])
        others = [n for n, (own, theirs) in enumerate(zip(standard, answers, strict=False)) if own not in ("", theirs)]
        if any(self._confirmed[workload, number] < _CONFIRMATIONS for number in others):
            await self._confirm(workload, others)
            others = [number for number in others if standard[number]]
        if not others:
            return None
        return (
            f"action {others[0] + 1} did other work: its exit code or output is not {self._witness}'s; a workload says by a "
            "pattern where output may differ"
        )

    async def _confirm(self, workload: str, numbers: Sequence[int]) -> None:
        standard, again = self._standard[workload], await self._ask(workload)
        for number in numbers:
            if number < len(again) and again[number] != standard[number]:
                standard[number] = ""
            elif again:
                self._confirmed[workload, number] += 1

"""Whether a guest answers: a receiver that no action stands behind."""

import asyncio
from typing import NoReturn

from excise.guest import wire


class Question:
    """Sent as the kill of an action that never was: nothing but "killed" may come for it."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether it was; False: there will be no answer any more."""

    def killed(self) -> bool:
        self._settle(answered=True)
        return True

    def lost(self) -> None:
        self._settle(answered=False)

    def _settle(self, *, answered: bool) -> None:
        if not self.answered.done():  # else who asked gave up
            self.answered.set_result(answered)

    def output(self, stream: int, data: bytes) -> None:
        _unasked()

    def credited(self, count: int) -> None:
        _unasked()

    def started(self) -> None:
        _unasked()

    def ended(self, how: wire.Ended) -> bool:
        _unasked()

    def refused(self, why: wire.Refusal) -> bool:
        _unasked()

    def pump(self) -> None:
        """It has nothing to send."""


def _unasked() -> NoReturn:
    raise wire.ProtocolError("something of an action that never was")

"""How many sandboxes a check may make, and why a case was not run."""


class NotRun(Exception):  # noqa: N818 - no error: the case says nothing about the substrate
    """This case was not judged."""


class NeedsOwn(NotRun):
    """It wants a sandbox that no other case has had, or will have."""


class Sandboxes:
    """Counts them, and refuses those above the bound."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.made = 0

    def take(self) -> None:
        """One more is about to be made."""
        if self._most is not None and self.made >= self._most:
            raise NotRun(f"it needs a sandbox of its own, and {self._most} were allowed")
        self.made += 1

"""Whose a sandbox is: nobody's until it was used or a step of it saw a secret, and from then on one owner's alone."""

import hashlib
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from excise.action import Exec, Shell
from excise.spec import Secret, Step

LABEL = "owner"
_CREDENTIALS = re.compile(r"https?://[^/\s@'\"$]+@|[a-z][a-z0-9+.-]*://[^/\s:@'\"$]*:[^/\s@'\"]+@", re.IGNORECASE)
"""In an address: a name or token before the host of a web server, a password before that of any other."""


class Owner(NamedTuple):
    """Who asks, and with which secrets; whose a sandbox is, and which secrets its steps saw."""

    name: str = ""
    secrets: bytes = b""
    """Empty for none; else a digest that nobody outside of this pool can make, so that it tells nothing of the values."""


def shows_credentials(step: Step) -> bool:
    """Whether it fetches with a name or password that stands in an address: what it leads to is its owner's."""
    for action in step.actions:
        if isinstance(action, Exec | Shell):
            words = (action.script,) if isinstance(action, Shell) else action.argv
            if any(_CREDENTIALS.search(word) for word in (*words, *action.env.values())):
                return True
    return False


class Owners:
    """Secrets are compared by a hash under a key that lives as long as the pool and is written nowhere."""

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def digest(self, secrets: Mapping[str, Secret]) -> bytes:
        """What `Owner.secrets` is for these."""
        if not secrets:
            return b""
        keyed = hashlib.blake2b(key=self._key, digest_size=16)
        for name in sorted(secrets):
            for part in (name.encode(), secrets[name].reveal().encode("utf-8", "surrogateescape")):
                keyed.update(len(part).to_bytes(8, "little") + part)
        return keyed.digest()

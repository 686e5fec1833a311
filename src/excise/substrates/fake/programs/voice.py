"""How programs speak: text to bytes, complaints, signal names."""

import signal

from excise.substrates.fake.proc import Proc


def encoded(text: str) -> bytes:
    """As the bytes it came from."""
    return text.encode("utf-8", "surrogateescape")


async def complain(proc: Proc, name: str, text: str) -> int:
    """Say it on stderr; the status is 1."""
    await proc.write(2, encoded(f"{name}: {text}\n"))
    return 1


def signal_number(name: str) -> int:
    """A signal by its number or name, with or without SIG; -1 if there is none such."""
    if name.isdigit():
        return int(name)
    known = signal.Signals.__members__.get(f"SIG{name.upper().removeprefix('SIG')}")
    return -1 if known is None else known.value

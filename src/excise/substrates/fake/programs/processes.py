"""Programs about processes: to wait, to detach, to signal, to run another with other variables; and one that listens."""

import errno
import re
import signal

from excise.substrates.fake.launch import become, find_program, said
from excise.substrates.fake.pipes import Pipe, ReadEnd, Stream, WriteEnd
from excise.substrates.fake.proc import Proc
from excise.substrates.fake.programs.fetching import fetch
from excise.substrates.fake.programs.voice import complain, encoded, signal_number
from excise.substrates.fake.special import open_path


async def env(proc: Proc, argv: list[str]) -> int:
    env = dict(proc.env)
    words = argv[1:]
    while words and (words[0].startswith("-") or "=" in words[0]):
        word = words.pop(0)
        if word in ("-i", "-"):
            env = {}
        elif word == "-u":
            env.pop(words.pop(0), None)
        else:
            name, _, value = word.partition("=")
            env[name] = value
    if not words:
        await proc.write(1, encoded("".join(f"{name}={value}\n" for name, value in env.items())))
        return 0
    return await run_here(proc, words, env)


async def run_here(proc: Proc, argv: list[str], env: dict[str, str]) -> int:
    """execvp(3), or what a program says that cannot."""
    try:
        program = find_program(proc, argv[0], env.get("PATH", proc.env.get("PATH", "")))
    except OSError as error:
        await complain(proc, argv[0], said(error))
        return 127 if error.errno == errno.ENOENT else 126
    return await become(proc, program, argv, env)


async def sleep(proc: Proc, argv: list[str]) -> int:
    await proc.sleep(sum(float(word.removesuffix("s")) for word in argv[1:]))
    return 0


async def setsid(proc: Proc, argv: list[str]) -> int:
    proc.group = proc.session = proc.pid
    return await run_here(proc, argv[1:], proc.env)


async def kill(proc: Proc, argv: list[str]) -> int:
    words = argv[1:]
    number: int = signal.SIGTERM
    if words and words[0] == "-s":
        number, words = signal_number(words[1]), words[2:]
    elif words and words[0].startswith("-") and words[0] != "--":
        number, words = signal_number(words[0][1:]), words[1:]
    status = 0
    for word in words:
        if word == "--":
            continue
        targets = proc.machine.targets(int(word), proc)
        if not targets:
            status = await complain(proc, "kill", f"({word}): No such process")
        for target in targets:
            proc.machine.signal(target, number)
    await proc.sleep(0)  # a signal to oneself is felt here
    return status


async def perl(proc: Proc, argv: list[str]) -> int:
    """Of perl only this: a one-liner that listens on LocalPort, makes the file it opens for writing, and echoes lines.

    And one that has a PeerAddr: it fetches.
    """
    script = " ".join(argv)
    if "PeerAddr" in script:
        return await fetch(proc, argv)
    port = re.search(r"LocalPort\s*=>\s*(\d+)", script)
    if port is None:
        return await complain(proc, "perl", "the pretend machine's perl can only listen on a LocalPort and echo, or fetch")
    number = int(port[1])
    callers: list[Connected] = []
    if number in proc.machine.ports:
        return await complain(proc, "perl", "Died: Address already in use")
    proc.machine.ports[number] = Listener(proc, callers)
    for made in re.findall(r"open\(F, q\(>\), q\(([^)]*)\)\)", script):
        open_path(proc, made, write=True, truncate=True)
    while not callers:
        await proc.machine.changed.wait()
    heard, spoken = callers.pop(0)
    proc.files.put(3, heard)
    proc.files.put(4, spoken)
    while line := await proc.read(3):
        await proc.write(4, line)
    return 0


Connected = tuple[Stream, Stream]


class Listener:
    """An open port: who calls gets the far ends of two pipes."""

    def __init__(self, proc: Proc, callers: list[Connected]) -> None:
        self.proc = proc
        self._callers = callers

    def call(self) -> tuple[Pipe, Pipe]:
        """What the caller writes to, and what the caller reads from."""
        there, back = Pipe(), Pipe()
        there.writers += 1
        back.readers += 1
        self._callers.append((ReadEnd(there), WriteEnd(back)))
        self.proc.machine.changed.tell()
        return there, back

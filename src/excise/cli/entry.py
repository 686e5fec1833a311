"""From a command line to an exit code: the parser, the signals, and the one place where errors become sentences."""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from cyclopts import App, Group

from excise.cli.sentences import FAILED, describe, say

_ENDING = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def application() -> App:
    """Every command by its import path: nothing of a command is loaded before it runs."""
    measure, use, care = (Group(name, sort_key=n) for n, name in enumerate(("Measure", "Use", "Care")))
    app = App(
        name="excise",
        help="Measure what a rollout pays to its infrastructure, and run sandboxes on any substrate.",
        help_epilogue="An ADDRESS names a substrate: local, chroot, docker, bubblewrap, fake:broken=cwd. "
        "`excise doctor` lists those that run here; `excise COMMAND --help` has examples.",
        help_format="plaintext",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    app["--help"].show = app["--version"].show = False
    commands = (
        (measure, "measure", "Measure the tax of substrates on this machine and print the table."),
        (measure, "report", "Write a page with figures and tables, or a trace, of results that were measured."),
        (measure, "project", "Project rollouts to worker-hours, with intervals and sensitivity."),
        (measure, "compare", "Compare two runs by ratios; exit 1 where one got slower."),
        (measure, "advise", "Say which substrate, path, start state and pool cost least, from what was measured."),
        (measure, "record", "Write what a program does in sandboxes to a file that can be measured."),
        (use, "run", "Run one command in a fresh sandbox."),
        (use, "ps", "List the live sandboxes on this machine."),
        (use, "shell", "Run a shell, or a command, in a live sandbox."),
        (use, "cp", "Copy files into or out of a live sandbox."),
        (use, "diff", "Show what a live sandbox has changed."),
        (use, "logs", "Show what was run in a sandbox and what it printed."),
        (use, "rm", "End a live sandbox."),
        (use, "snapshots", "List the snapshots that were kept, or delete some."),
        (use, "pool", "Run a warm pool under load, and show what its claims find and what it costs."),
        (use, "serve", "Serve a substrate of this machine to clients over the network."),
        (use, "image", "Build, list and remove root-filesystem images."),
        (use, "check", "Check that a substrate keeps every promise of the contract."),
        (care, "doctor", "Say what runs on this machine, and how to enable the rest."),
        (care, "gc", "Remove sandboxes that outlived their lease or their owner."),
    )
    for order, (group, name, sentence) in enumerate(commands):
        app.command(f"excise.cli.{name}:app", name=name, group=group, help=sentence, sort_key=order)
    return app


def main(tokens: Sequence[str] | None = None) -> int:
    """Run the command that `tokens` (or the process's own arguments) spell."""
    ended: list[signal.Signals] = []

    def end(number: int, _: FrameType | None) -> None:
        # asyncio turns SIGINT into a cancellation, and that closes the sandboxes: they are closed for the other endings too.
        ended.append(signal.Signals(number))
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so a script's background job starts, and asyncio leaves it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    for number in _ENDING.keys() - {signal.SIGINT}:
        signal.signal(number, end)
    try:
        code = application()(tokens)
        sys.stdout.flush()
    except KeyboardInterrupt:
        say("ended early; its sandboxes were closed")
        return _ENDING[ended[0] if ended else signal.SIGINT]
    except BrokenPipeError:
        # Whoever read our output left (`excise doctor | head`). Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - here every error becomes one sentence
        return describe(error)
    return code if isinstance(code, int) else 0

"""The command line: one module a command, imported only when that command runs."""


def main() -> int:
    """The `excise` command. Its exit code is returned; no traceback leaves it."""
    from excise.cli.entry import main as enter  # noqa: PLC0415 - `import excise.cli.run` must not load a parser

    return enter()

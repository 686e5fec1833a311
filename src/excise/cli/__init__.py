"""The command line: one module a command, imported only when that command runs."""


def main() -> int:
    """The `excise` command. Its exit code is returned; no traceback leaves it."""
    try:
        from excise.cli.entry import main as enter  # noqa: PLC0415 - `import excise.cli.run` must not load a parser
    except KeyboardInterrupt:
        return 130  # Ctrl-C while the parser was loading

    return enter()

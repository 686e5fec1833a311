"""altair, loaded when the first figure is drawn: tables and traces work without it."""

from typing import Any


class _Altair:
    """Stands for the module; its own types describe a grammar that no checker follows, so it is Any to ours."""

    def __getattr__(self, name: str) -> Any:
        import altair  # noqa: PLC0415 - see above

        return getattr(altair, name)


alt: Any = _Altair()

Chart = Any
"""Any of altair's: a chart, its layers, a row of them."""
Channel = Any
"""What of a mark is told by which field: x, y, colour."""

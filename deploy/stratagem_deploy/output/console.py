"""Where commands print tables."""

from __future__ import annotations

from rich.console import Console

# Files and pipes have no width, and what reads them is to find names whole.
_NO_TERMINAL_COLUMNS = 100_000


def table_console() -> Console:
    """Return the standard output: as wide as it is, or so wide that nothing is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=_NO_TERMINAL_COLUMNS)

"""Looking at a cluster again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from stratagem_deploy.watching.asking import ServerAnswer
from stratagem_deploy.watching.looks import Look
from stratagem_deploy.watching.tables import tables


def look_twice(look: Look, interval: float) -> tuple[list[ServerAnswer], list[ServerAnswer]]:
    """Return what servers say before and after some seconds."""
    earlier = look()
    time.sleep(interval)
    return earlier, look()


def show(look: Look, interval: float, console: Console, heading: str = "") -> NoReturn:
    """Show what servers say on a terminal, until interrupted.

    Args:
        look: Asks them.
        interval: Seconds between two looks.
        console: The terminal.
        heading: Which cluster it is, or "".
    """
    earlier: Sequence[ServerAnswer] = ()
    above = [Text(heading)] if heading else []
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def update() -> None:
            nonlocal earlier
            answers = look()
            live.update(Group(*above, *tables(answers, earlier)), refresh=True)
            earlier = answers

        repeat(update, interval)


def repeat(work: Callable[[], None], interval: float) -> NoReturn:
    """Do something every so many seconds, until interrupted."""
    while True:
        work()
        time.sleep(interval)

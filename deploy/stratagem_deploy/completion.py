"""Commands that read their own arguments, so that no other command waits for what they load.

While a shell completes a line of one of them, its options are looked up where they stand.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

# The modules whose `app` reads the arguments. None of them loads PyTorch.
_READERS = {
    "run": "stratagem_deploy.running.cli",
    "ps": "stratagem_psserver.cli",
    "worker": "stratagem_worker.cli",
}


def reader(command: str) -> typer.Typer:
    """Return what reads the arguments of a command, and load it."""
    app: typer.Typer = import_module(_READERS[command]).app
    return app


class CompletedGroup(TyperGroup):
    """A group of commands, some of which have their options elsewhere."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of a command, the command and its arguments.

        While a shell completes a line (`resilient_parsing`), the command is the one that reads the
        arguments.
        """
        name, command, rest = super().resolve_command(ctx, args)
        if ctx.resilient_parsing and name in _READERS:
            command = typer.main.get_command(reader(name))
        return name, command, rest

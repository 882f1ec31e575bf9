"""The `stratagem log` commands.

Exit codes: 0 when all is well, 1 when the log is damaged, and 2 when it cannot be read.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from stratagem_proto.errors import DataLossError, StratagemError

app = typer.Typer(no_args_is_help=True, help="Look at the logs of servers, and check them.")

Folder = Annotated[
    Path, typer.Argument(help="The folder of one server, such as ps-0 in --durability-folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]

_NO, _UNANSWERED = 1, 2
_POLL_SECONDS = 0.5


@contextmanager
def _answering() -> Iterator[None]:
    """Print errors and exit with the code for them."""
    try:
        yield
    except DataLossError as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(_NO) from error
    except (StratagemError, OSError) as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(_UNANSWERED) from error


@app.command()
def inspect(folder: Folder, as_json: AsJson = False) -> None:
    """Count the records of a log by kind, and tell which server wrote it with which kernels.

    Exit code: 0 when it is done, 1 if the log is damaged, and 2 if it cannot be read.
    """
    from stratagem_deploy.logs.listing import contents, table

    with _answering():
        listed = contents(folder)
        if as_json:
            typer.echo(json.dumps(listed, indent=2))
        else:
            table(listed)


@app.command()
def verify(folder: Folder, as_json: AsJson = False) -> None:
    """Read every byte of a log and compare it with its checksums.

    What is behind the last record is no damage: room for the next ones, or an end that was not
    written in full, of which nobody has heard. The server cuts it off when it starts. An end that
    is missing although it had been on disk is damage.

    Exit code: 0 when all is intact, 1 if it is damaged, and 2 if it cannot be read.
    """
    from stratagem_deploy.logs.listing import opened, require_end

    with _answering():
        reader = opened(folder)
        count = sum(1 for _ in reader.records())
        require_end(folder, reader)
        if as_json:
            typer.echo(json.dumps({"records": count, "last": reader.position}, indent=2))
        else:
            typer.echo(f"{count} records are intact, up to record {reader.position}")


@app.command()
def tail(
    folder: Folder,
    count: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many records.")] = 10,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on with records that the server adds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each record as JSON.")] = False,
) -> None:
    """Print the last records of a log, a line each: position, time, and what has changed.

    Exit code: 0 when it is done or was ended by Ctrl-C, 1 if the log is damaged, and 2 if it cannot
    be read.
    """
    from stratagem_deploy.logs.listing import line, opened

    with _answering():
        reader = opened(folder)
        for record in deque(reader.records(), count):
            typer.echo(line(record, as_json))
        while follow:
            time.sleep(_POLL_SECONDS)
            last = reader.position
            reader = opened(folder, last)
            for record in reader.records():
                if record.position > last:
                    typer.echo(line(record, as_json))

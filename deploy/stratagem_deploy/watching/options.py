"""Options of all commands that ask the servers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from stratagem_proto.secret_files import TOKEN_FILE


def _runs() -> Iterator[tuple[str, str]]:
    """The runs on this machine, for shells to complete: the process and the script of each."""
    from stratagem_deploy.processes.run_records import records

    for record in records():
        yield str(record.pid), record.script


Servers: TypeAlias = Annotated[
    list[str] | None, typer.Argument(metavar="[HOST:PORT]...", help="Servers; else the cluster's.")
]
Cluster: TypeAlias = Annotated[
    Path | None, typer.Option(help="File in the form of TF_CONFIG; by default TF_CONFIG itself.")
]
TokenFile: TypeAlias = Annotated[
    Path | None, typer.Option(envvar=TOKEN_FILE.variable, help="File with the cluster's secret.")
]
Run: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--run",
        metavar="PID",
        help="Process of the `stratagem run` to ask about.",
        autocompletion=_runs,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Timeout: TypeAlias = Annotated[
    float, typer.Option(min=0.001, help="Seconds to wait for the slowest server.")
]
Interval: TypeAlias = Annotated[float, typer.Option(min=0.01, help="Seconds between two looks.")]
Patience: TypeAlias = Annotated[
    float, typer.Option(min=0, help="Waits of fewer seconds are not reported.")
]

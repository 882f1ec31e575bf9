"""Options of all commands that ask the servers of a cluster, and how these look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from stratagem_deploy.output import exit_on
from stratagem_proto.errors import StratagemError
from stratagem_proto.secret_files import TOKEN_FILE
from stratagem_rpc.certificates.presented import presented, presenting

if TYPE_CHECKING:
    from stratagem_deploy.watching.asking import ServerAnswer, WatchedCluster


def _runs() -> Iterator[tuple[str, str]]:
    """The runs on this machine, for shells to complete: the process and the script of each."""
    from stratagem_deploy.processes.resources import records

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


Look = Callable[[], "list[ServerAnswer]"]
"""Asks all servers once."""

NOBODY = 2
"""The exit code of a command that has nobody to ask."""


def found_cluster(
    servers: Sequence[str] | None, cluster: Path | None, run: int | None
) -> WatchedCluster:
    """Return the servers that a command is about, and say which ones it has found."""
    from stratagem_deploy.watching.asking import find

    with nobody_to_ask():
        found = find(servers or (), str(cluster or ""), run)
    if found.heading:
        typer.echo(f"stratagem: {found.heading}", err=True)
    return found


def look_at(
    found: WatchedCluster,
    token_file: Path | None,
    timeout: float,
    with_variables: bool = False,
) -> Look:
    """Return what asks servers."""
    from stratagem_deploy.watching.asking import ask

    with nobody_to_ask():
        token = TOKEN_FILE.read(found.run.token_file if found.run else token_file)
        certificates = found.run.tls if found.run else None
        if certificates is None:
            # A folder that cannot be used is refused before anybody is asked.
            presented()
    asking = partial(ask, found.places, token, timeout, with_variables)
    if certificates is None:
        return asking

    def ask_run() -> list[ServerAnswer]:
        with presenting(certificates):
            return asking()

    return ask_run


def nobody_to_ask() -> AbstractContextManager[None]:
    """Return a block that ends the command if there is none."""
    return exit_on(NOBODY, StratagemError, OSError, ImportError)

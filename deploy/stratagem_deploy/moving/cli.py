"""The commands `stratagem servers list`, `drain`, `add` and `rebalance`.

Exit codes: 0 when done, 1 when it was refused or failed, and 2 when there was nobody to ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratagem_deploy.watching.options import AsJson, Cluster, TokenFile
from stratagem_proto.configuration import token_file as secrets
from stratagem_proto.errors import StratagemError

if TYPE_CHECKING:
    from stratagem import Servers, TaskMove

Known = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="HOST:PORT", help="A server of the cluster; may be repeated."),
]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that a task has to move.")]
Server = Annotated[str, typer.Argument(help="Number of the server, or its HOST:PORT.")]
Address = Annotated[
    str, typer.Argument(metavar="HOST:PORT", help="Where the server is that gets tasks.")
]

_FAILED, _NOBODY = 1, 2

app = typer.Typer(
    no_args_is_help=True, help="Move tasks between parameter servers while programs use them."
)


@app.command("list")
def list_servers(
    at: Known = None, cluster: Cluster = None, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List the servers of a cluster, with the tasks that each serves.

    Servers are found by --at, else in TF_CONFIG, else those of the current `stratagem run`; one of
    them suffices.

    Exit code: 0 when done, 1 if tasks of this cluster cannot move, and 2 if there was nobody to
    ask.
    """
    from rich.console import Console

    from stratagem_deploy.moving.listing import facts_of, table_of

    with _reported():
        found = _servers(at, cluster, token_file).report()
    if as_json:
        typer.echo(json.dumps({"servers": facts_of(found)}))
    else:
        Console().print(table_of(found))


@app.command()
def drain(
    server: Server,
    at: Known = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
    timeout: Timeout = 300.0,
) -> None:
    """Move all tasks of a server to the others, so that it may be stopped.

    Servers are found as by `stratagem servers list`.

    Exit code: 0 when done, 1 if it was refused or a task has not moved, and 2 if there was nobody
    to ask.
    """
    with _reported():
        moves = _servers(at, cluster, token_file).drain(server, timeout)
    _tell(moves, as_json)


@app.command()
def add(
    server: Address,
    at: Known = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
    timeout: Timeout = 300.0,
) -> None:
    """Give a server that was started, or drained, its share of the tasks.

    Start it with `stratagem ps`, the --arbiter of the others, and a --task that none of them has.
    The other servers are found as by `stratagem servers list`.

    Exit code: 0 when done, 1 if it was refused or a task has not moved, and 2 if there was nobody
    to ask.
    """
    with _reported():
        moves = _servers(at, cluster, token_file).add(server, timeout)
    _tell(moves, as_json)


@app.command()
def rebalance(
    at: Known = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
    timeout: Timeout = 300.0,
) -> None:
    """Move tasks so that servers are about equally loaded, by bytes and by calls.

    Servers are found as by `stratagem servers list`.

    Exit code: 0 when done, also if nothing had to move, 1 if it was refused or a task has not
    moved, and 2 if there was nobody to ask.
    """
    with _reported():
        moves = _servers(at, cluster, token_file).rebalance(timeout)
    _tell(moves, as_json)


def _servers(at: Sequence[str] | None, cluster: Path | None, token_file: Path | None) -> Servers:
    """Return the servers of the cluster that is meant; end the command if there is none."""
    from stratagem import Servers
    from stratagem._ps_client.connections.session import Identity
    from stratagem_deploy.watching.places import find
    from stratagem_proto.v1.session_pb2 import ROLE_OPERATOR

    try:
        found = find(at or (), str(cluster or ""))
        token = secrets.read_token(found.run.token_file if found.run else token_file)
    except (StratagemError, OSError) as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(_NOBODY) from error
    # Of a told address nobody says which job it is of.
    places = [place.address for place in found.places if place.label[:3] in ("", "ps:")]
    return Servers(lambda: places, Identity(ROLE_OPERATOR, token=token))


@contextmanager
def _reported() -> Iterator[None]:
    """End the command with the message of an error."""
    try:
        yield
    except StratagemError as error:
        typer.echo(f"stratagem: {error}", err=True)
        raise typer.Exit(_FAILED) from error


def _tell(moves: Sequence[TaskMove], as_json: bool) -> None:
    if as_json:
        facts = [{"task": m.task, "source": m.source, "target": m.target} for m in moves]
        typer.echo(json.dumps({"moves": facts}))
        return
    for move in moves:
        typer.echo(f"/job:ps/task:{move.task} has moved from server {move.source} to {move.target}")
    if not moves:
        typer.echo("nothing had to move")

"""The commands `stratagem servers list`, `drain`, `add` and `rebalance`.

Exit codes: 0 when done, 1 when it was refused or failed, and 2 when there was nobody to ask.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from stratagem_deploy.output import exit_on, table_console
from stratagem_deploy.processes.resources import RunRecord
from stratagem_deploy.running.additions import one_more_server
from stratagem_deploy.watching.asking import amount
from stratagem_deploy.watching.looks import AsJson, Cluster, Run, TokenFile
from stratagem_proto.errors import FailedPreconditionError, InvalidArgumentError
from stratagem_proto.secret_files import TOKEN_FILE
from stratagem_rpc.certificates.presented import presenting
from stratagem_rpc.serving.settings import check_server_address

if TYPE_CHECKING:
    from stratagem import Servers, ServerTasks, TaskMove
    from stratagem_deploy.watching.asking import WatchedCluster

_COLUMNS = ("server", "address", "tasks", "bytes", "calls/s", "")


Known = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="HOST:PORT", help="A server of the cluster; may be repeated."),
]
Timeout = Annotated[float, typer.Option(min=0.001, help="Seconds that a task has to move.")]
Pace = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="The most bytes of values that a server sends in a second, and that another one then "
        "loads, so that training has processors and network left.",
    ),
]
Server = Annotated[str, typer.Argument(help="Number of the server, or its HOST:PORT.")]
Address = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOST:PORT]",
        help="Where the server is that gets tasks; else a `stratagem run --movable` starts one.",
    ),
]

_FAILED, _NOBODY = 1, 2

app = typer.Typer(
    no_args_is_help=True, help="Move tasks between parameter servers while programs use them."
)


@app.command("list")
def list_servers(
    at: Known = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    as_json: AsJson = False,
) -> None:
    """List the servers of a cluster, with the tasks that each serves.

    Servers are found by --at, else in TF_CONFIG; one of them suffices. Else they are those of the
    current `stratagem run --movable`; if there are several runs, --run chooses one.

    Exit code: 0 when all tasks are served, 1 if one is not, or if tasks of this cluster cannot
    move, and 2 if there was nobody to ask.
    """
    with _cluster(at, cluster, token_file, run) as (servers, watched):
        found = [*servers.report()]
    found += _not_begun(watched, found)
    if as_json:
        typer.echo(json.dumps({"servers": [_facts(server) for server in found]}))
    else:
        _print_servers(found)
    if any(server.unserved for server in found):
        raise typer.Exit(_FAILED)


def _not_begun(watched: WatchedCluster, found: Sequence[ServerTasks]) -> list[ServerTasks]:
    """Return the servers of a cluster's tasks that none has begun with yet."""
    from stratagem import ServerTasks

    begun = {task for one in found for task in (*(each.task for each in one.tasks), *one.unserved)}
    named = [(place.label.removeprefix("ps:"), place.address) for place in watched.places]
    missing = {int(task): at for task, at in named if task.isdigit() and int(task) not in begun}
    return [ServerTasks(task, at, False, (), (task,)) for task, at in sorted(missing.items())]


def _print_servers(found: Sequence[ServerTasks]) -> None:
    table = Table(*_COLUMNS, box=box.SIMPLE_HEAD)
    for server in found:
        drained = "draining" if server.tasks else "drained"
        said = [drained] if server.is_draining else []
        said += [f"nobody serves {_names(server.unserved)}"] if server.unserved else []
        table.add_row(
            str(server.number),
            server.address,
            _names(task.task for task in server.tasks),
            amount(sum(task.nbytes for task in server.tasks)),
            f"{sum(task.calls_per_second for task in server.tasks):.0f}",
            ", ".join(said),
        )
    table_console().print(table)


def _names(tasks: Iterable[int]) -> str:
    return ", ".join(f"ps:{task}" for task in tasks)


@app.command()
def drain(  # noqa: PLR0913  # one parameter for each option
    server: Server,
    at: Known = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    as_json: AsJson = False,
    timeout: Timeout = 300.0,
    bytes_per_second: Pace = None,
) -> None:
    """Move all tasks of a server to the others, so that it may be stopped.

    Servers are found as by `stratagem servers list`.

    Exit code: 0 when done, 1 if it was refused or a task has not moved, and 2 if there was nobody
    to ask.
    """
    with _cluster(at, cluster, token_file, run) as (servers, _):
        moves = servers.drain(server, timeout, bytes_per_second)
    _print_moves(moves, as_json)


@app.command()
def add(  # noqa: PLR0913  # one parameter for each option
    server: Address = None,
    at: Known = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    as_json: AsJson = False,
    timeout: Timeout = 300.0,
    bytes_per_second: Pace = None,
) -> None:
    """Give a server that was started, or drained, its share of the tasks.

    Start it with `stratagem ps`, the --arbiter of the others, and a --task that none of them has.
    The other servers are found as by `stratagem servers list`. Without HOST:PORT, the current
    `stratagem run --movable` starts a server, which ends with it.

    Exit code: 0 when done, 1 if it was refused or a task has not moved, and 2 if there was nobody
    to ask.
    """
    if server is not None:
        with exit_on(_NOBODY):
            check_server_address(server)
    with _cluster(at, cluster, token_file, run) as (servers, found):
        moves = servers.add(server or _started_by(found.run), timeout, bytes_per_second)
    _print_moves(moves, as_json)


@app.command()
def rebalance(  # noqa: PLR0913  # one parameter for each option
    at: Known = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    as_json: AsJson = False,
    timeout: Timeout = 300.0,
    bytes_per_second: Pace = None,
) -> None:
    """Move tasks so that servers are about equally loaded, by bytes and by calls.

    Servers are found as by `stratagem servers list`.

    Exit code: 0 when done, also if nothing had to move, 1 if it was refused or a task has not
    moved, and 2 if there was nobody to ask.
    """
    with _cluster(at, cluster, token_file, run) as (servers, _):
        moves = servers.rebalance(timeout, bytes_per_second)
    _print_moves(moves, as_json)


def _facts(server: ServerTasks) -> dict[str, Any]:
    """Return what is known of a server, for JSON."""
    return {
        "server": server.number,
        "address": server.address,
        "draining": server.is_draining,
        "tasks": [
            {
                "task": task.task,
                "bytes": task.nbytes,
                "calls_per_second": round(task.calls_per_second, 1),
            }
            for task in server.tasks
        ],
        "unserved": [*server.unserved],
    }


@contextmanager
def _cluster(
    at: Sequence[str] | None, cluster: Path | None, token_file: Path | None, run: int | None
) -> Iterator[tuple[Servers, WatchedCluster]]:
    """Yield the servers of the cluster that is meant, and how it was found.

    An error ends the command with its message.
    """
    from stratagem import Servers
    from stratagem._ps_client.session import Identity
    from stratagem_deploy.watching.asking import find
    from stratagem_proto.v1.session_pb2 import ROLE_OPERATOR

    with exit_on(_NOBODY):
        found = find(at or (), str(cluster or ""), run, "--at HOST:PORT of one")
        token = TOKEN_FILE.read(found.run.token_file if found.run else token_file)
    # Of a told address nobody says which job it is of.
    places = [place.address for place in found.places if place.label[:3] in ("", "ps:")]
    with ExitStack() as resources:
        if found.run and found.run.tls:
            resources.enter_context(presenting(found.run.tls))
        with exit_on(_FAILED):
            yield Servers(lambda: places, Identity(ROLE_OPERATOR, token=token)), found


def _started_by(run: RunRecord | None) -> str:
    """Have a run start one more server, and return its address.

    Raises:
        InvalidArgumentError: There is no run that could.
        FailedPreconditionError: Tasks of the run cannot move, or it cannot start a server.
        UnavailableError: It has ended.
    """
    if run is None:
        raise InvalidArgumentError(
            "say which server gets tasks, by its HOST:PORT; only a `stratagem run --movable` on "
            "this machine starts one by itself"
        )
    if run.additions is None:
        raise FailedPreconditionError(
            f"the servers of `stratagem run {run.script}` (process {run.pid}) keep their tasks; "
            "run it with --movable"
        )
    address = one_more_server(run.additions)
    typer.echo(f"stratagem: the run has started a server at {address}", err=True)
    return address


def _print_moves(moves: Sequence[TaskMove], as_json: bool) -> None:
    if as_json:
        facts = [{"task": m.task, "source": m.source, "target": m.target} for m in moves]
        typer.echo(json.dumps({"moves": facts}))
        return
    for move in moves:
        typer.echo(f"/job:ps/task:{move.task} has moved from server {move.source} to {move.target}")
    if not moves:
        typer.echo("nothing had to move")

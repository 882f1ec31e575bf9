"""`python -m benchmarks chaos --minutes 10`: the demo, while something fails every two seconds."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Mapping
from contextlib import closing
from enum import Enum
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.hosts.host import Hosts
from benchmarks.chaos.hosts.namespaces import Namespaces, enter_own
from benchmarks.chaos.hosts.proxies import Proxies
from benchmarks.chaos.launcher import Launcher
from benchmarks.chaos.picture import drawn
from benchmarks.chaos.report import table
from benchmarks.chaos.run import Run, StandstillError
from benchmarks.chaos.servers.movable import MovableServers
from benchmarks.chaos.servers.replicated import ReplicatedServers
from benchmarks.chaos.servers.task_servers import TaskServers
from benchmarks.harness import namespace
from benchmarks.harness.report import FOLDER

WRONG, STANDSTILL = 1, 3
"""Exit codes."""


class Way(Enum):
    """How processes are cut off from each other."""

    NAMESPACES = "namespaces"
    PROXIES = "proxies"


class Servers(Enum):
    """What the servers of the job ps are."""

    REPLICATED = "replicated"
    MOVABLE = "movable"


_SERVERS: Mapping[Servers, Callable[[Launcher], TaskServers]] = {
    Servers.REPLICATED: ReplicatedServers,
    Servers.MOVABLE: MovableServers,
}


def main(  # one parameter for each option
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults happen.")] = 10.0,
    every: Annotated[
        float, typer.Option(min=0.0, help="Seconds between faults; 0 for none.")
    ] = 2.0,
    servers: Annotated[
        Servers, typer.Option(help="Servers with a backup each, or with tasks that move.")
    ] = Servers.REPLICATED,
    seed: Annotated[int, typer.Option(help="Of what goes wrong.")] = 0,
    cuts: Annotated[
        Way | None,
        typer.Option(help="How to cut processes off; by default namespaces, as root, or proxies."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = FOLDER,
) -> None:
    """Train the demo while processes are drained, killed or cut off.

    Movable servers have a log, and are taken away and added as well.

    Exit code: 0 when nothing was lost, repeated or left out, and the error is that of a training
    without faults; 1 when it is not so; 3 when the training did not come to its end.
    """
    if cuts is None:
        cuts = Way.PROXIES if namespace.missing() else Way.NAMESPACES
    if cuts is Way.NAMESPACES:
        enter_own()
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="chaos-", dir=out) as folder, closing(_hosts(cuts)) as hosts:
        place = Path(folder).resolve()
        new_cluster = partial(Cluster, place, hosts, _SERVERS[servers])
        run = Run(place, new_cluster, 60.0 * minutes, every, random.Random(seed))
        try:
            found = run.verdict()
        except StandstillError as error:
            print(f"the training did not come to its end: {error}")
            raise SystemExit(STANDSTILL) from None
        finally:
            _show(run, out / "chaos.png")
    for each in found:
        print(f"wrong: {each}")
    raise SystemExit(WRONG if found else 0)


def _hosts(cuts: Way) -> Hosts:
    return Namespaces() if cuts is Way.NAMESPACES else Proxies()


def _show(run: Run, picture: Path) -> None:
    drawn(run.account.steps(), run.happened).savefig(picture, dpi=150)
    print(table(run).markdown())
    print(picture)


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

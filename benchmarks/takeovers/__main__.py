"""`python -m benchmarks.takeovers`: how long a server is away that loses its primary."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from typing import Annotated, TypeAlias

import torch
import typer
from tqdm import tqdm

from benchmarks.harness.losses import QUANTILES, quantiles
from benchmarks.harness.table import Table
from benchmarks.takeovers.replicas import Replicas
from stratagem import ParameterServerStrategy, Variable
from stratagem_deploy import LocalCluster

# So that each round ends with all bytes compared.
_VERIFY = {"STRATAGEM_VERIFY_SECONDS": "0.2"}

Update: TypeAlias = Callable[[], None]

Round: TypeAlias = Callable[[LocalCluster, Replicas, Update], float]
"""Loses a primary, and returns the seconds until the next update is acknowledged."""


def _kill(cluster: LocalCluster, replicas: Replicas, update: Update) -> float:
    os.kill(replicas.primary().status.pid, signal.SIGKILL)
    seconds = _timed(update)
    cluster.restart("ps", 0)
    return seconds


def _suspend(cluster: LocalCluster, replicas: Replicas, update: Update) -> float:
    pid = replicas.primary().status.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        seconds = _timed(update)
    finally:
        os.kill(pid, signal.SIGCONT)
    return seconds


def _stop(cluster: LocalCluster, replicas: Replicas, update: Update) -> float:
    replicas.primary()
    stopping = threading.Thread(target=cluster.stop, args=("ps", 0))
    stopping.start()
    seconds = _timed(update)
    stopping.join()
    cluster.restart("ps", 0)
    return seconds


def _timed(update: Update) -> float:
    began = time.monotonic()
    update()
    return time.monotonic() - began


ROUNDS: Mapping[str, Round] = {
    "killed (SIGKILL)": _kill,
    "suspended (SIGSTOP), and continued": _suspend,
    "stopped (SIGTERM)": _stop,
}


class Counting:
    """Adds 1 to variables on the server, of which one is large.

    Args:
        strategy: Where they are.
    """

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            self._small = Variable(torch.tensor(0), False, name="small")
            self._large = Variable(torch.zeros(250_000), False, name="large")
        self._added = 0

    def add(self) -> None:
        """Add 1 to each."""
        self._small.assign_add(1)
        self._large.assign_add(torch.ones(250_000))
        self._added += 1

    def difference(self) -> int:
        """Return how many updates are lost (below 0), or there twice."""
        large = self._large.numpy()
        found = {int(self._small.numpy()), int(large.min()), int(large.max())}
        return max((value - self._added for value in found), key=abs)


def main(
    count: Annotated[int, typer.Option(min=1, help="Losses of each kind.")] = 50,
    only: Annotated[str, typer.Option(help="The kind, as in the table.")] = "",
    log: Annotated[bool, typer.Option(help="Whether both keep a log on disk.")] = False,
) -> None:
    """Lose primaries while a program trains, and measure the time to the next acknowledged update.

    Exit code: 0 when nothing was lost or there twice, and both replicas were equal; else 1.
    """
    rows, faults = [], 0
    for name, lose in ROUNDS.items():
        if only in name:
            times, difference = _lost(lose, count, log, name)
            faults += abs(difference)
            rows.append([name, str(len(times)), *quantiles(times), str(difference)])
    columns = ["the primary is", "times", *QUANTILES, "lost or doubled"]
    print(Table(columns, rows).markdown())
    raise SystemExit(faults > 0)


def _lost(lose: Round, count: int, log: bool, name: str) -> tuple[list[float], int]:
    with ExitStack() as stack:
        cluster = stack.enter_context(_cluster(log))
        strategy = stack.enter_context(ParameterServerStrategy(cluster.cluster_resolver))
        replicas, counting = Replicas(cluster.cluster_resolver), Counting(strategy)
        times, difference = [], 0
        for _ in tqdm(range(count), desc=name, unit="loss"):
            counting.add()
            times.append(lose(cluster, replicas, counting.add))
            counting.add()
            replicas.await_equal()
            difference = difference or counting.difference()
        return times, difference


@contextmanager
def _cluster(log: bool) -> Iterator[LocalCluster]:
    os.environ.update(_VERIFY)
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(dir=".")) if log else None
        cluster = LocalCluster(
            1,
            0,
            processes=True,
            replicas=2,
            durability="log" if log else "none",
            durability_folder=folder and os.path.abspath(folder),
        )
        yield stack.enter_context(cluster)


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

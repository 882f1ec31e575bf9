"""`python -m benchmarks.replacements`: how long functions wait when their worker is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Annotated, NamedTuple, TypeAlias

import torch
import typer
from tqdm import tqdm

from benchmarks.harness.losses import QUANTILES, quantiles, wait_until
from benchmarks.harness.table import Table
from stratagem import ParameterServerStrategy, Variable
from stratagem.coordinator import (
    ClusterCoordinator,
    RemoteValue,
    experimental_get_current_worker_index,
)
from stratagem_deploy import LocalCluster

WORKERS, _FUNCTION_SECONDS = 2, 0.02

# Of each worker: one runs, and the others wait behind it.
_BACKLOG = 3 * WORKERS

Lose: TypeAlias = Callable[[LocalCluster, int], None]

WAYS: Mapping[str, Lose] = {
    "killed (SIGKILL)": lambda cluster, worker: cluster.kill("worker", worker),
    "stopped (SIGTERM)": lambda cluster, worker: cluster.stop("worker", worker),
}


class Wait(NamedTuple):
    """How long it took, in seconds.

    Attributes:
        others: Until all functions had ended that workers had when one was lost.
        again: Until another process in its place had run a function.
    """

    others: float
    again: float


_until = partial(wait_until, every=0.005)


class Counting:
    """Functions that add 1 to a variable, of which workers always have some.

    Args:
        strategy: Where the variable is.
    """

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        with strategy.scope():
            self._counter = Variable(torch.tensor(0), False, name="counter")
        self.coordinator = ClusterCoordinator(strategy, max_worker_losses=None)
        self._scheduled = 0

    def schedule(self) -> RemoteValue:
        """Schedule one, which returns the index of its worker."""
        self._scheduled += 1
        return self.coordinator.schedule(_count, args=(self._counter,))

    def difference(self) -> int:
        """Wait for all; return how many are lost (below 0), or there twice."""
        self.coordinator.join()
        return int(self._counter.numpy()) - self._scheduled


def _count(counter: Variable) -> int:
    time.sleep(_FUNCTION_SECONDS)
    counter.assign_add(1)
    return experimental_get_current_worker_index()


def main(
    count: Annotated[int, typer.Option(min=1, help="Losses of each kind.")] = 50,
    only: Annotated[str, typer.Option(help="The kind, as in the table.")] = "",
) -> None:
    """Lose worker servers, and measure how long their functions wait.

    Exit code: 0 when each function has changed what it changes once; else 1.
    """
    rows, faults = [], 0
    for name, lose in WAYS.items():
        if only in name:
            waits, difference = _lost(lose, count, name)
            faults += abs(difference)
            for what, times in zip(Wait._fields, zip(*waits, strict=True), strict=True):
                figures = [str(len(times)), *quantiles(times)]
                rows.append([name, _WHAT[what], *figures, str(difference)])
    columns = ["the worker is", "until", "times", *QUANTILES]
    print(Table([*columns, "lost or doubled"], rows).markdown())
    raise SystemExit(faults > 0)


_WHAT = {
    "others": "its functions have ended on others",
    "again": "its next process has run a function",
}


def _lost(lose: Lose, count: int, name: str) -> tuple[list[Wait], int]:
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(1, worker_servers=WORKERS, processes=True))
        strategy = stack.enter_context(ParameterServerStrategy(cluster.cluster_resolver))
        counting = Counting(strategy)
        waits = [
            _round(cluster, counting, lose, number % WORKERS)
            for number in tqdm(range(count), desc=name, unit="loss")
        ]
        return waits, counting.difference()


def _round(cluster: LocalCluster, counting: Counting, lose: Lose, worker: int) -> Wait:
    _until(lambda: len(counting.coordinator.workers) == WORKERS)
    counting.schedule().fetch()
    values = [counting.schedule() for _ in range(_BACKLOG)]
    began = time.monotonic()
    losing = threading.Thread(target=_replace, args=(cluster, lose, worker))
    losing.start()
    _until(lambda: worker not in counting.coordinator.workers)
    for value in values:
        value.fetch()
    others = time.monotonic() - began
    _until(lambda: worker in counting.coordinator.workers)
    while worker not in _ran_on(counting):
        pass
    losing.join()
    return Wait(others, time.monotonic() - began)


def _replace(cluster: LocalCluster, lose: Lose, worker: int) -> None:
    lose(cluster, worker)
    cluster.restart("worker", worker)


def _ran_on(counting: Counting) -> set[int]:
    """Let each worker run a function, if it is there; return the indices of those that did."""
    values = [counting.schedule() for _ in range(WORKERS)]
    return {int(value.fetch()) for value in values}


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

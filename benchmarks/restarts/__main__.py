"""`python -m benchmarks.restarts`: how long a killed server is away that has a full log to read."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeAlias

import torch
import typer
from tqdm import tqdm, trange

import stratagem
from benchmarks.harness.losses import QUANTILES, quantiles
from benchmarks.harness.table import Table
from stratagem import ParameterServerStrategy
from stratagem_deploy import LocalCluster

_FOLDER = Path("runs/benchmarks")
_PART_BYTES = 10_000_000
# As of `stratagem ps`; an image begins after so many, so a few less are the most to be read.
_LOG_BYTES, _LOG_RECORDS = 1 << 30, 20_000
_FULL = 0.98


class Training:
    """Parameters that grow by 1 in each step, and a number that grows by 1 in each change.

    Args:
        strategy: Where they are.
        nbytes: The size of the large ones, of which a step takes one after the other.
    """

    def __init__(self, strategy: ParameterServerStrategy, nbytes: int) -> None:
        with strategy.scope():
            self._small = torch.nn.ParameterList([torch.zeros(1)])
            parts = [torch.zeros(_PART_BYTES // 4) for _ in range(nbytes // _PART_BYTES)]
            self._large = torch.nn.ParameterList(parts)
            self._number = stratagem.Variable(0.0)
        self._counted = 0
        self._strategy = strategy
        self._steps = {module: _Steps(module) for module in (self._small, self._large)}

    def step_small(self) -> None:
        """Take a step of the small parameter."""
        self._strategy.run(self._steps[self._small].take)

    def count(self) -> None:
        """Add 1 to the number, which is one record of the log."""
        self._number.assign_add(1.0)
        self._counted += 1

    def step_large(self) -> None:
        """Take a step of a large parameter."""
        self._strategy.run(self._steps[self._large].take)

    def require_all(self) -> None:
        """Require that servers have what all steps have made.

        Raises:
            RuntimeError: They have lost or doubled a step or a change.
        """
        self._strategy.refresh()
        if float(self._number.numpy()) != self._counted:
            raise RuntimeError(f"the number is {self._number.numpy()}, not {self._counted}")
        for steps in self._steps.values():
            steps.require_all()


class _Steps:
    """Steps of a list of parameters, of which each takes one."""

    def __init__(self, parameters: torch.nn.ParameterList) -> None:
        self._parameters, self._taken = parameters, 0
        sgd = torch.optim.SGD(parameters.parameters(), lr=1.0)
        self._optimizer = stratagem.DistributedOptimizer(sgd)

    def take(self) -> None:
        chosen = self._parameters[self._taken % len(self._parameters)]
        chosen.grad = torch.full_like(chosen, -1.0)
        self._optimizer.step()
        chosen.grad = None
        self._taken += 1

    def require_all(self) -> None:
        for number, parameter in enumerate(self._parameters):
            expected = len(range(number, self._taken, len(self._parameters)))
            if not bool((parameter == expected).all()):
                raise RuntimeError(f"a parameter has {parameter[0]:g}, not {expected}")


Filling: TypeAlias = Callable[[Training], None]
"""Takes steps until there is as much to read as there can be."""


def _nothing(training: Training) -> None:
    pass


def _large_steps(training: Training) -> None:
    for _ in trange(
        int(_FULL * _LOG_BYTES / _PART_BYTES), desc="large steps", leave=False, mininterval=1.0
    ):
        training.step_large()


def _small_changes(training: Training) -> None:
    for _ in trange(int(_FULL * _LOG_RECORDS), desc="small changes", leave=False, mininterval=1.0):
        training.count()


FILLINGS: Mapping[str, tuple[int, Filling]] = {
    "10 MB of variables": (_PART_BYTES, _nothing),
    "1 GB of variables, 1 GB of log": (1_000_000_000, _large_steps),
    "1 GB of variables, 20,000 changes": (1_000_000_000, _small_changes),
}


def main(
    count: Annotated[int, typer.Option(min=1, help="Restarts of each kind.")] = 20,
    only: Annotated[str, typer.Option(help="What there is to read, as in the table.")] = "",
) -> None:
    """Kill a server and start it again, and measure the time until it answers the next step."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    times = {name: _restarts(*kind, count) for name, kind in FILLINGS.items() if only in name}
    rows = [[name, *quantiles(some, 1)] for name, some in times.items()]
    print(Table(["to read", *QUANTILES], rows).markdown())


def _restarts(nbytes: int, fill: Filling, count: int) -> Sequence[float]:
    with (
        TemporaryDirectory(prefix="restarts-", dir=_FOLDER) as folder,
        LocalCluster(
            1, 0, processes=True, durability="log", durability_folder=os.path.abspath(folder)
        ) as cluster,
        ParameterServerStrategy(cluster.cluster_resolver) as strategy,
    ):
        training = Training(strategy, nbytes)
        training.step_small()
        fill(training)
        times = [_restart(cluster, training) for _ in tqdm(range(count), unit="restart")]
        training.require_all()
        return times


def _restart(cluster: LocalCluster, training: Training) -> float:
    cluster.kill("ps", 0)
    began = time.monotonic()
    cluster.restart("ps", 0)
    training.step_small()
    return time.monotonic() - began


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

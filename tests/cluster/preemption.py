"""A program whose workers and servers are killed, and its expected result."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Dataset

from stratagem import ParameterServerStrategy, Variable
from stratagem.coordinator import ClusterCoordinator, RemoteValue
from stratagem_deploy import LocalCluster
from tests.deploy.processes.process_tree import command, tasks
from tests.waiting import eventually

_SHAPE = (10, 10)


class Preemptions:
    """A cluster of processes whose tasks are killed and started again."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._killed: set[tuple[str, int]] = set()

    def kill(self, job: str, index: int = 0) -> None:
        """Ends a task by SIGKILL."""
        self.cluster.kill(job, index)
        self._killed.add((job, index))

    def start(self, job: str, index: int = 0) -> None:
        """Starts a task again that was killed."""
        self.cluster.restart(job, index)
        self._killed.discard((job, index))

    def restart(self, job: str, index: int = 0) -> None:
        """Kills a task and starts it again."""
        self.kill(job, index)
        self.start(job, index)

    def revive(self) -> None:
        """Starts again what is dead, all at once."""
        with ThreadPoolExecutor() as starts:
            for start in [starts.submit(self.start, *task) for task in self._killed]:
                start.result()


def process_of(job: str, index: int) -> int:
    """The process of a task of the only local cluster of this process."""
    program = {"ps": "stratagem_psserver.__main__", "worker": "stratagem_worker.__main__"}[job]
    for pid in tasks(os.getpid()):
        words = command(pid).split()
        if program in words and words[words.index("--task") + 1] == str(index):
            return pid
    raise AssertionError(f"there is no process of {job}:{index}")


class Ones(Dataset[torch.Tensor]):
    """Data of which there is more than enough."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(_SHAPE)


class Training:
    """A program that lets workers train.

    Each of its functions adds ones to `weights`, then goes on until `endless` is 0, and adds 1 to
    `iterations` at last.

    Args:
        strategy: Its strategy.
        settings: Of its coordinator.

    Attributes:
        strategy: Its strategy.
        coordinator: Its coordinator.
    """

    def __init__(self, strategy: ParameterServerStrategy, **settings: Any) -> None:
        self.strategy = strategy
        self.coordinator = ClusterCoordinator(strategy, **settings)
        with strategy.scope():
            zeros = torch.zeros(_SHAPE)
            self.weights = Variable(zeros, trainable=False, name="weights")
            self.iterations = Variable(0, name="iterations")
            self.endless = Variable(0, name="endless")
        # The servers may have them from an earlier program.
        self.weights.assign(zeros)
        self.iterations.assign(0)
        self.endless.assign(0)
        self.rebuild_iterators()

    def rebuild_iterators(self, use_function: bool = True) -> None:
        """Lets workers make new datasets for what is scheduled from now on."""
        strategy = self.strategy

        def make() -> Any:
            return strategy.experimental_distribute_dataset(Ones())

        create = self.coordinator.create_per_worker_dataset
        source = make if use_function else Ones()
        self._iterators = [iter(create(source)) for _ in range(2)]

    def schedule(self, count: int) -> list[RemoteValue]:
        """Schedules so many functions, which return their processes."""
        args = (self.weights, self.iterations, self.endless, *self._iterators)
        return [self.coordinator.schedule(_train, args=args) for _ in range(count)]

    def run_endlessly(self, count: int, workers: int = 2) -> list[RemoteValue]:
        """Schedules functions of which each worker runs one, until `join`."""
        self.endless.assign(1)
        before = self.begun
        values = self.schedule(count)
        eventually(lambda: self.begun == before + workers)
        return values

    def join(self) -> None:
        """Lets all functions end, and waits until they have."""
        self.endless.assign(0)
        self.coordinator.join()

    @property
    def begun(self) -> float:
        """How many functions have added to `weights`."""
        values = self.weights.read_value()
        assert (values == values[0, 0]).all()
        return float(values[0, 0])

    @property
    def ended(self) -> int:
        """How many functions have ended."""
        return int(self.iterations.read_value())


@contextmanager
def training_on(cluster: LocalCluster, connect_seconds: float = 60.0) -> Iterator[Training]:
    """A program in whose block workers may be lost.

    Args:
        cluster: Of processes.
        connect_seconds: For how long a server may be away.
    """
    strategy = ParameterServerStrategy(cluster.cluster_resolver, connect_seconds=connect_seconds)
    with strategy:
        training = Training(strategy)
        eventually(lambda: training.coordinator.workers == [0, 1])
        yield training


def _train(
    weights: Variable, iterations: Variable, endless: Variable, first: Any, second: Any
) -> int:
    weights.assign_add(next(first) * next(second))
    while endless.read_value():
        time.sleep(0.02)
    iterations.assign_add(1)
    return os.getpid()

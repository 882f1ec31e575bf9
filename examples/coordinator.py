"""The recommender of movielens.py, trained by functions that one program schedules.

    python examples/coordinator.py [--seed 1]

It starts two parameter servers and two worker servers. While these work, a third one joins, and one
of the first two is killed. Each rating is still trained on exactly once in each epoch; the servers
record which ones were.

With `--cluster tf-config` or `--cluster kubernetes`, servers and workers run elsewhere, and workers
may come and go. A second program that is started so stands by, and takes over if the first is lost.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset
from tqdm import tqdm

import stratagem
from stratagem.cluster_resolver import (
    ClusterResolver,
    KubernetesClusterResolver,
    TFConfigClusterResolver,
    UnionResolver,
)
from stratagem.coordinator import (
    ClusterCoordinator,
    RemoteValue,
    experimental_get_current_worker_index,
    stand_by,
)
from stratagem_deploy import LocalCluster

if TYPE_CHECKING or __package__:
    from examples import movielens
else:  # a script sees what lies beside it
    import movielens

WORKERS = 3
"""How many workers a local cluster has, together with the one that comes late."""

KILLED = 1
"""The worker that is lost."""

Event = Callable[[ClusterCoordinator], None]
"""What happens to the workers."""


class Place(Enum):
    """Where servers and workers are described."""

    HERE = "here"
    TF_CONFIG = "tf-config"
    KUBERNETES = "kubernetes"


class Learner:
    """What is trained, and an account of what it was trained on.

    Its methods are what workers run.

    Args:
        strategy: Whose servers have it.
        ratings: How many ratings there are to train on.
    """

    def __init__(self, strategy: stratagem.ParameterServerStrategy, ratings: int) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.model = movielens.Recommender()
            times = torch.zeros(ratings, dtype=torch.int64)
            self.trained = stratagem.Variable(times, trainable=False, name="trained")
        adamw = torch.optim.AdamW(
            self.model.parameters(),
            movielens.RATE,
            weight_decay=movielens.WEIGHT_DECAY,
        )
        self.optimizer = stratagem.DistributedOptimizer(adamw)

    def step(self, batches: Any) -> tuple[Tensor, int]:
        """Trains on the next batch; returns the loss and which worker did it."""
        ids, rows = next(batches)
        loss = self.strategy.run(self.update, args=tuple(rows.T))
        once = stratagem.IndexedSlices(torch.ones_like(ids), ids)
        self.trained.scatter_add(once)
        return loss, experimental_get_current_worker_index()

    def update(self, user: Tensor, item: Tensor, rating: Tensor) -> Tensor:
        loss = functional.mse_loss(self.model.train()(user, item), rating.float())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def error(self, ratings: Tensor) -> float:
        """Returns the error on some ratings."""
        with torch.no_grad():
            error: float = self.strategy.run(movielens.rmse, args=(self.model, ratings))
        return error


@dataclass(frozen=True)
class Epoch:
    """What became of one pass over the ratings.

    Attributes:
        loss: Mean of the functions' losses.
        functions: How many of them each worker ran.
        trained: How often each rating has been trained on since the beginning.
    """

    loss: float
    functions: Counter[int]
    trained: Tensor


@dataclass(frozen=True)
class Result:
    """What became of the training.

    Attributes:
        epochs: All passes over the ratings.
        error: On the held-out ratings.
    """

    epochs: list[Epoch]
    error: float


def train(
    strategy: stratagem.ParameterServerStrategy,
    events: Mapping[int, Event],
    checkpoints: Path | None = None,
    resolver_seconds: float | None = None,
) -> Result:
    """The whole program.

    Args:
        strategy: Of the chief of a cluster with worker servers.
        events: What happens, by the epoch in the midst of which it does.
        checkpoints: Folder of a checkpoint per epoch.
        resolver_seconds: How often to look for workers that come or go.
    """
    coordinator = ClusterCoordinator(strategy, resolver_seconds=resolver_seconds)
    ratings = movielens.load_ratings()
    held_out, rest = ratings[: movielens.HELD_OUT], ratings[movielens.HELD_OUT :]
    learner = Learner(strategy, len(rest))
    data = coordinator.create_per_worker_dataset(loader_of(rest), exactly_once=True)
    steps = movielens.EPOCHS * len(data)
    schedule = CosineAnnealingLR(learner.optimizer, steps)
    epochs = []
    with tqdm(total=steps, unit="function") as progress:
        for number in range(movielens.EPOCHS):
            batches, values = iter(data), []
            for _ in range(len(data)):
                values.append(coordinator.schedule(learner.step, args=(batches,)))
                schedule.step()
            event = partial(events.get(number, nothing), coordinator)
            ended = followed(values, progress, event)
            losses, workers = zip(*ended, strict=True)
            trained = learner.trained.read_value()
            epochs.append(Epoch(mean(losses), Counter(workers), trained))
            if checkpoints:
                strategy.save(checkpoints, keep=2, wait=False)
    error = coordinator.schedule(learner.error, args=(held_out,))
    return Result(epochs, error.fetch())


def loader_of(ratings: Tensor) -> DataLoader[Any]:
    """Pairs of ids and ratings, read by the batch, which is faster than row by row."""
    rows = TensorDataset(torch.arange(len(ratings)), ratings)
    batches = BatchSampler(RandomSampler(rows), movielens.BATCH, drop_last=False)
    return DataLoader(rows, batch_size=None, sampler=batches)


def followed(
    values: Sequence[RemoteValue], progress: tqdm[Any], event: Callable[[], None]
) -> list[tuple[float, int]]:
    """What functions return; an event happens when half of them have ended."""
    ended = []
    for number, value in enumerate(values):
        if number == len(values) // 2:
            event()
        ended.append(value.fetch())
        progress.update()
    return ended


def nothing(coordinator: ClusterCoordinator) -> None:
    """What happens in most epochs."""


def report(result: Result) -> Table:
    """Who has trained, and how often on each rating."""
    workers = sorted({worker for epoch in result.epochs for worker in epoch.functions})
    columns = [f"by worker {worker}" for worker in workers]
    table = Table("epoch", "training RMSE", *columns, "times that each was trained on")
    for number, epoch in enumerate(result.epochs, 1):
        counts = [str(epoch.functions[worker]) for worker in workers]
        times = ", ".join(map(str, epoch.trained.unique().tolist()))
        table.add_row(str(number), f"{epoch.loss**0.5:.4f}", *counts, times)
    return table


def train_on(cluster: LocalCluster, checkpoints: Path | None = None) -> Result:
    """Trains on a cluster whose workers come and go meanwhile."""

    def join(coordinator: ClusterCoordinator) -> None:
        coordinator.add_worker(cluster.add_worker_server())

    def kill(coordinator: ClusterCoordinator) -> None:
        cluster.kill("worker", KILLED)

    events = {movielens.EPOCHS // 3: join, movielens.EPOCHS * 2 // 3: kill}
    with stratagem.ParameterServerStrategy(cluster.cluster_resolver) as strategy:
        return train(strategy, events, checkpoints)


def resolver_of(place: Place) -> ClusterResolver:
    """Who says where servers and workers are; which task this is says TF_CONFIG."""
    own = TFConfigClusterResolver()
    if place is Place.TF_CONFIG:
        return own
    pods = {job: [f"app.kubernetes.io/component={job}"] for job in ("ps", "worker")}
    namespace = os.environ["NAMESPACE"]
    found = KubernetesClusterResolver(pods, 2222, namespace=namespace, address="dns")
    return UnionResolver(own, found)


def train_in_turn(resolver: ClusterResolver, checkpoints: Path | None) -> Result | None:
    """Trains once no other program does; returns nothing if another one has come to the end."""
    with ExitStack() as stack:
        try:
            stack.enter_context(stand_by(resolver))
        except stratagem.CancelledError as end:
            print(f"coordinator: {end}")
            return None
        strategy = stack.enter_context(stratagem.ParameterServerStrategy(resolver))
        return train(strategy, {}, checkpoints, resolver_seconds=5.0)


def main(
    seed: Annotated[int, typer.Option(help="Of the first weights and the order.")] = 0,
    cluster: Annotated[
        Place, typer.Option(help="Where servers and workers are described.")
    ] = Place.HERE,
    save: Annotated[Path | None, typer.Option(help="Folder of a checkpoint per epoch.")] = None,
) -> None:
    """Train on a cluster, by default on one that is started on this machine."""
    torch.manual_seed(seed)
    result: Result | None
    if cluster is Place.HERE:
        with LocalCluster(ps=2, worker_servers=WORKERS - 1, processes=True) as started:
            result = train_on(started, save)
    else:
        result = train_in_turn(resolver_of(cluster), save)
    if result is None:
        return
    Console().print(report(result))
    print(f"coordinator: test RMSE {result.error:.4f}")


if __name__ == "__main__":
    typer.run(main)

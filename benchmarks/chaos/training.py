"""The demo's training by a coordinator, with the moment of each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from examples import movielens
from examples.coordinator import Learner, loader_of
from stratagem import ParameterServerStrategy
from stratagem.coordinator import ClusterCoordinator
from stratagem_deploy import LocalCluster

# Functions that are scheduled ahead.
_AHEAD = 40


@dataclass(frozen=True)
class Trained:
    """What became of a training.

    Attributes:
        error: The RMSE on the held-out ratings.
        uncounted: How many ratings were not trained on once in each epoch.
    """

    error: float
    uncounted: int


def train(cluster: LocalCluster, on_step: Callable[[float], None]) -> Trained:
    """Train the demo's model as the demo does.

    Args:
        cluster: Servers and worker servers.
        on_step: Called with the moment at which the result of a step has come, in seconds.
    """
    torch.manual_seed(0)
    ratings = movielens.load_ratings()
    held_out, rest = ratings[: movielens.HELD_OUT], ratings[movielens.HELD_OUT :]
    with ParameterServerStrategy(cluster.cluster_resolver, connect_seconds=300.0) as strategy:
        coordinator = ClusterCoordinator(strategy)
        learner = Learner(strategy, len(rest))
        data = coordinator.create_per_worker_dataset(loader_of(rest), exactly_once=True)
        schedule = CosineAnnealingLR(learner.optimizer, movielens.EPOCHS * len(data))
        for _ in range(movielens.EPOCHS):
            batches, values = iter(data), []
            for _ in range(len(data)):
                values.append(coordinator.schedule(learner.step, args=(batches,)))
                schedule.step()
                if len(values) > _AHEAD:
                    values.pop(0).fetch()
                    on_step(time.monotonic())
            for value in values:
                value.fetch()
                on_step(time.monotonic())
        times = learner.trained.read_value()
        error = coordinator.schedule(learner.error, args=(held_out,)).fetch()
    return Trained(error, int((times != movielens.EPOCHS).sum()))

"""The training function of an example in the three shapes that a program can have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

import stratagem
from examples import movielens
from examples.coordinator import Learner
from stratagem.cluster_resolver import ClusterResolver
from stratagem.coordinator import ClusterCoordinator
from tests.demo import FEW_EPOCHS


@dataclass(frozen=True)
class Course:
    """What is trained on.

    Attributes:
        ratings: How many of the ratings.
        batch: Ratings in a step.
        epochs: Passes over them.
    """

    ratings: int
    batch: int
    epochs: int

    def batches(self, worker: int = 0, workers: int = 1) -> Iterator[Tensor]:
        """A worker's part of the ratings, in the order in which it is trained on."""
        rest = _ratings()[movielens.HELD_OUT :][: self.ratings]
        mine, order = rest[worker::workers], torch.Generator().manual_seed(worker)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(mine), generator=order).split(self.batch):
                yield mine[batch]


SHORTENED = Course(80_000, movielens.BATCH, FEW_EPOCHS)
"""The demo's, with fewer epochs."""


@dataclass(frozen=True)
class Trained:
    """What came of it.

    Attributes:
        state: Of the model.
        error: On the held-out ratings.
    """

    state: dict[str, Tensor]
    error: float


def lesson(learner: Learner, rows: Tensor, number: int) -> Tensor:
    """The training function: one step. Dropout follows from the step's number."""
    torch.manual_seed(number)
    loss: Tensor = learner.strategy.run(learner.update, args=tuple(rows.T))
    return loss


def train_here(
    strategy: stratagem.ParameterServerStrategy,
    course: Course,
    worker: int = 0,
    workers: int = 1,
) -> Trained:
    """Calls the training function, as one of the workers or alone."""
    learner, batches = _beginner(strategy), [*course.batches(worker, workers)]
    schedule = CosineAnnealingLR(learner.optimizer, len(batches))
    strategy.barrier("begin")
    for number, rows in enumerate(batches):
        lesson(learner, rows, number * workers + worker)
        schedule.step()
    strategy.barrier("trained")
    trained = Trained(_state(learner), learner.error(_held_out()))
    strategy.barrier("told")
    return trained


def train_as_worker(resolver: ClusterResolver, course: Course) -> float:
    """One worker's whole program; returns the error."""
    workers = resolver.cluster_spec().num_tasks("worker")
    with stratagem.ParameterServerStrategy(resolver) as strategy:
        return train_here(strategy, course, resolver.task_id or 0, workers).error


def train_by_workers(strategy: stratagem.ParameterServerStrategy, course: Course) -> Trained:
    """Schedules the training function on workers."""
    coordinator = ClusterCoordinator(strategy)
    learner, batches = _beginner(strategy), [*course.batches()]
    schedule = CosineAnnealingLR(learner.optimizer, len(batches))
    for number, rows in enumerate(batches):
        coordinator.schedule(lesson, args=(learner, rows, number))
        schedule.step()
    coordinator.join()
    error = coordinator.schedule(learner.error, args=(_held_out(),))
    return Trained(_state(learner), error.fetch())


def _beginner(strategy: stratagem.ParameterServerStrategy) -> Learner:
    torch.manual_seed(0)
    return Learner(strategy, ratings=0)


def _state(learner: Learner) -> dict[str, Tensor]:
    learner.strategy.refresh()
    return {name: one.clone() for name, one in learner.model.state_dict().items()}


def _held_out() -> Tensor:
    return _ratings()[: movielens.HELD_OUT]


_ratings = cache(movielens.load_ratings)

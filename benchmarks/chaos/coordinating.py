"""The coordinator, which goes on where the one before was killed.

Usage: python -m benchmarks.chaos.coordinating FOLDER, with `TF_CONFIG`.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.chaos.account import Account, Outcome
from examples import movielens
from examples.coordinator import Learner, loader_of
from stratagem import ParameterServerStrategy, Variable
from stratagem.cluster_resolver import TFConfigClusterResolver
from stratagem.coordinator import ClusterCoordinator, RemoteValue

# Functions that are scheduled ahead.
_AHEAD = 40
_CONNECT_SECONDS = 300.0


class SummingLearner(Learner):
    """The demo's, with the sum of the numbers of all ratings that it was trained on.

    Args:
        strategy: Whose servers have it.
        ratings: How many ratings there are to train on.
    """

    def __init__(self, strategy: ParameterServerStrategy, ratings: int) -> None:
        super().__init__(strategy, ratings)
        with strategy.scope():
            self.total = Variable(torch.tensor(0), trainable=False, name="total")

    def step(self, batches: Any) -> tuple[Tensor, int]:
        """Train on the next batch, and add up which ratings it has."""
        seen: list[Tensor] = []
        result = super().step(_noting(batches, seen))
        self.total.assign_add(seen[0].sum())
        return result


def _noting(batches: Any, seen: list[Tensor]) -> Any:
    for ids, rows in batches:
        seen.append(ids)
        yield ids, rows


def coordinate(folder: Path) -> None:
    """Have workers train, until it is enough."""
    account = Account.of(folder)
    torch.manual_seed(0)
    ratings = movielens.load_ratings()
    held_out, rest = ratings[: movielens.HELD_OUT], ratings[movielens.HELD_OUT :]
    resolver = TFConfigClusterResolver()
    with ParameterServerStrategy(resolver, connect_seconds=_CONNECT_SECONDS) as strategy:
        # However often a worker is lost, its function is to run on another one.
        coordinator = ClusterCoordinator(strategy, max_worker_losses=None)
        learner = SummingLearner(strategy, len(rest))
        data = coordinator.create_per_worker_dataset(loader_of(rest), True, "ratings")
        passes = 0
        while not passes or not account.is_enough:
            batches = iter(data)
            _set_rate(learner, account.rate(batches.pass_number))
            _train(coordinator, learner, batches, account.note_step)
            passes = batches.pass_number + 1
        error = coordinator.schedule(learner.error, args=(held_out,)).fetch()
        times, total = learner.trained.read_value(), int(learner.total.numpy())
    expected = passes * sum(range(len(rest)))
    miscounted = int((times != passes).sum())
    account.conclude(Outcome(error, passes, len(data), miscounted, total - expected))


def _set_rate(learner: Learner, rate: float) -> None:
    for group in learner.optimizer.param_groups:
        group["lr"] = rate


def _train(
    coordinator: ClusterCoordinator, learner: Learner, batches: Any, on_step: Callable[[], None]
) -> None:
    """Have workers train on what is left of a pass."""
    waiting: deque[RemoteValue] = deque()
    for _ in range(batches.remaining):
        waiting.append(coordinator.schedule(learner.step, args=(batches,)))
        if len(waiting) > _AHEAD:
            waiting.popleft().fetch()
            on_step()
    for value in waiting:
        value.fetch()
        on_step()


if __name__ == "__main__":
    coordinate(Path(sys.argv[1]))

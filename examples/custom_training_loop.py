"""A training loop of your own, with variables on one device and replicas on others.

    python examples/custom_training_loop.py --replicas 3

A small network predicts the progress of diabetes from ten measurements. The replicas are logical
CPUs, so this runs anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import stratagem
from stratagem import CentralStorageStrategy, InputContext, Strategy, ValueContext

BATCH, RATE, HELD_OUT, RESAMPLES = 60, 0.01, 92, 1200


class Epoch(NamedTuple):
    """Mean squared errors, 5 % and 95 % of the resampled ones, rows of each replica."""

    training: float
    test: float
    low: float
    high: float
    parts: list[int]


def central(replicas: int) -> Strategy:
    """The variables on CPU:0, a replica on each of CPU:0, CPU:1, ..."""
    stratagem.config.set_logical_cpus(replicas)
    devices = [f"CPU:{index}" for index in range(replicas)]
    return CentralStorageStrategy(devices, "CPU:0")


def patients() -> tuple[TensorDataset, TensorDataset]:
    """350 patients to train on and 92 to test with, each (measurements, progression).

    All values have mean 0 and variance 1, so that to guess the mean is to err by 1.
    """
    table: Any = load_diabetes()
    measured = torch.tensor(table.data * math.sqrt(len(table.data))).float()
    target = torch.tensor((table.target - table.target.mean()) / table.target.std())
    rows = TensorDataset(measured, target.float())
    return TensorDataset(*rows[HELD_OUT:]), TensorDataset(*rows[:HELD_OUT])


def shuffled(training: TensorDataset, seed: int) -> DataLoader[Any]:
    """Batches in an order of their own in each epoch; the last one is short."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(training, BATCH, shuffle=True, generator=generator)


def network() -> nn.Module:
    """The progression, from measurements of shape (N, 10)."""
    layers = nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(start_dim=0)
    return nn.Sequential(*layers)


def step_of(model: nn.Module, optimizer: Optimizer) -> Callable[..., Tensor]:
    """The function that takes a step and returns the squared error of each row."""

    def step(measured: Tensor, target: Tensor) -> Tensor:
        errors: Tensor = (model(measured) - target).square()
        optimizer.zero_grad()
        # By the rows of all replicas, so that their gradients add up to the batch's.
        (errors.sum() / BATCH).backward()
        optimizer.step()
        return errors.detach()

    return step


def errors_on(test: TensorDataset, strategy: Strategy, model: nn.Module) -> Tensor:
    """The squared error of each row, in order; replicas that get none have 0 rows."""

    def batches(context: InputContext) -> DataLoader[Any]:
        return DataLoader(test, context.get_per_replica_batch_size(BATCH))

    def errors(measured: Tensor, target: Tensor) -> Tensor:
        progression: Tensor = model(measured).detach()
        return (progression - target).square()

    rounds = strategy.distribute_datasets_from_function(batches)
    parts = [strategy.run(errors, args=tuple(batch)) for batch in rounds]
    return torch.cat([strategy.gather(part, axis=0) for part in parts])


def resampled_means(strategy: Strategy, errors: Tensor) -> Tensor:
    """Means of as many errors, drawn with replacement; each replica draws its own."""
    draws = RESAMPLES // strategy.num_replicas_in_sync, len(errors)

    def generator(context: ValueContext) -> torch.Generator:
        return torch.Generator().manual_seed(context.replica_id_in_sync_group)

    def means(generator: torch.Generator) -> Tensor:
        return errors[torch.randint(len(errors), draws, generator=generator)].mean(1)

    generators = strategy.experimental_distribute_values_from_function(generator)
    gathered: Tensor = strategy.gather(strategy.run(means, (generators,)), axis=0)
    return gathered


def train(strategy: Strategy, epochs: int, seed: int = 0) -> list[Epoch]:
    """Train, and test after each epoch."""
    torch.manual_seed(seed)
    training, test = patients()
    with strategy.scope():
        model = network()
    adam = Adam(model.parameters(), RATE)
    step = step_of(model, stratagem.DistributedOptimizer(adam, reduce_op="sum"))
    batches = strategy.experimental_distribute_dataset(shuffled(training, seed))
    history = []
    for _ in range(epochs):
        steps = [strategy.run(step, args=tuple(batch)) for batch in batches]
        sums = [strategy.reduce("sum", errors, axis=0) for errors in steps]
        errors = errors_on(test, strategy, model)
        training_error = float(torch.stack(sums).sum()) / len(training)
        means = resampled_means(strategy, errors)
        low, high = means.quantile(torch.tensor([0.05, 0.95])).tolist()
        parts = [len(part) for part in strategy.experimental_local_results(steps[-1])]
        history.append(Epoch(training_error, float(errors.mean()), low, high, parts))
    return history


def main(replicas: int = 2, epochs: int = 10, seed: int = 0) -> None:
    """Train on scikit-learn's diabetes data and show how the errors fall."""
    torch.set_num_threads(1)  # More only get in each other's way on such small tables.
    table = Table("epoch", "training error", "test error", "90 % of resamples")
    for number, epoch in enumerate(train(central(replicas), epochs, seed), start=1):
        span = f"{epoch.low:.3f} to {epoch.high:.3f}"
        errors = f"{epoch.training:.3f}", f"{epoch.test:.3f}"
        table.add_row(str(number), *errors, span)
    table.caption = f"rows of the replicas in the last step: {epoch.parts}"
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

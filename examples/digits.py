"""A small convolutional network on handwritten digits, on several devices at once.

    python examples/digits.py                         # four ways, one after the other python
    examples/digits.py --strategy mirrored-2   # one of them

The devices are logical CPUs, so this runs anywhere; on a machine with two GPUs use
`MirroredStrategy(["GPU:0", "GPU:1"])`. Compare `train` with `train_plainly` to see what a strategy
changes in a program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split
from tqdm import tqdm

import stratagem
from stratagem import CentralStorageStrategy, MirroredStrategy, Strategy

BATCH, RATE, HELD_OUT = 64, 0.01, 360


class Way(str, Enum):
    """The ways to train that the command line knows."""

    PLAIN = "plain"
    MIRRORED_2 = "mirrored-2"
    MIRRORED_4 = "mirrored-4"
    CENTRAL_2 = "central-2"


def cpus(count: int) -> list[str]:
    """Names of `count` logical devices, which all are the one CPU."""
    stratagem.config.set_logical_cpus(count)
    return [f"CPU:{index}" for index in range(count)]


STRATEGIES: dict[Way, Callable[[], Strategy]] = {
    Way.MIRRORED_2: lambda: MirroredStrategy(cpus(2)),
    Way.MIRRORED_4: lambda: MirroredStrategy(cpus(4)),
    Way.CENTRAL_2: lambda: CentralStorageStrategy(cpus(2), "CPU:0"),
}


def network() -> nn.Module:
    """Logits of ten digits, from images of shape (N, 1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )


def datasets() -> tuple[Dataset[Any], Dataset[Any]]:
    """1437 images to train on and 360 to test with, always the same ones."""
    digits: Any = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    every = TensorDataset(images, torch.tensor(digits.target))
    sizes = len(every) - HELD_OUT, HELD_OUT
    training, test = random_split(every, sizes, torch.Generator().manual_seed(0))
    return training, test


def step_of(model: nn.Module, optimizer: Optimizer) -> Callable[..., None]:
    """The function that takes one step on a batch of images and labels."""

    def step(images: Tensor, labels: Tensor) -> None:
        loss = functional.cross_entropy(model.train()(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def correct(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """How many images the model recognises."""
    with torch.no_grad():
        return labels.eq(model.eval()(images).argmax(1)).sum()


def train_plainly(epochs: int, seed: int) -> float:
    """Returns the share of the test images that plain PyTorch recognises."""
    torch.manual_seed(seed)
    training, test = datasets()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    step = step_of(model, optimizer)
    batches = DataLoader(training, BATCH, shuffle=True)
    for _ in tqdm(range(epochs), Way.PLAIN.value, unit="epoch"):
        for images, labels in batches:
            step(images, labels)
        schedule.step()
    right = [correct(model, *batch) for batch in DataLoader(test, HELD_OUT)]
    return int(torch.stack(right).sum()) / HELD_OUT


def train(strategy: Strategy, epochs: int, seed: int, title: str = "") -> float:
    """As `train_plainly`, by a strategy: each replica gets its part of each batch."""
    torch.manual_seed(seed)
    training, test = datasets()
    with strategy.scope():
        model = network()
    adam = torch.optim.Adam(model.parameters(), RATE)
    optimizer = stratagem.DistributedOptimizer(adam)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    step = step_of(model, optimizer)
    distribute = strategy.experimental_distribute_dataset
    batches = distribute(DataLoader(training, BATCH, shuffle=True))
    for _ in tqdm(range(epochs), title, unit="epoch"):
        for batch in batches:
            strategy.run(step, args=tuple(batch))
        schedule.step()
    right = [
        strategy.reduce("sum", strategy.run(correct, (model, *batch)), axis=None)
        for batch in distribute(DataLoader(test, HELD_OUT))
    ]
    return int(torch.stack(right).sum()) / HELD_OUT


def row(way: Way, epochs: int, seed: int) -> tuple[str, int, float, float]:
    """The way, its replicas, its accuracy, and how many seconds it took."""
    start = time.perf_counter()
    if way is Way.PLAIN:
        replicas, accuracy = 1, train_plainly(epochs, seed)
    else:
        strategy = STRATEGIES[way]()
        replicas = strategy.num_replicas_in_sync
        accuracy = train(strategy, epochs, seed, way.value)
    return way.value, replicas, accuracy, time.perf_counter() - start


def main(
    strategy: Annotated[list[Way] | None, typer.Option(help="By default all.")] = None,
    epochs: int = 20,
    seed: int = 0,
) -> None:
    """Train on scikit-learn's digits and compare the accuracies on held-out images."""
    torch.set_num_threads(1)  # More only get in each other's way on such small images.
    table = Table("strategy", "replicas", "test accuracy", "seconds")
    for way in strategy or list(Way):
        name, replicas, accuracy, seconds = row(way, epochs, seed)
        table.add_row(name, str(replicas), f"{accuracy:.4f}", f"{seconds:.1f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

"""A recommender on MovieLens-100K, trained by workers through parameter servers.

Every worker of the cluster runs this file:

    stratagem run --ps 2 --workers 2 examples/movielens.py [seed] [--pull bf16]

The model is a biased matrix factorisation with dropout: a rating is an offset, plus what the user
and the film add, plus the product of their two vectors.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib import pyplot
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver
from stratagem.compression import Compression, TopK

# Chosen by the error on 8,000 validation ratings of the training part.
EPOCHS, BATCH, RATE, WEIGHT_DECAY = 30, 1000, 0.01, 0.3
HELD_OUT = 20_000

COMPRESSIONS: Mapping[str, Compression | str | None] = {
    "none": None,
    "bf16": "bf16",
    "int8": "int8",
    "topk": TopK(0.05),
}


PULLED_AS: Mapping[str, torch.dtype | None] = {
    "exact": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


class Recommender(nn.Module):
    """Ratings of (user, item) pairs by id; ids start at 1."""

    def __init__(self, users: int = 944, items: int = 1683, dim: int = 16) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        self.offset = nn.Parameter(torch.tensor(3.0))
        self.dropout = nn.Dropout()
        for table in (self.user, self.item, self.user_bias, self.item_bias):
            nn.init.normal_(table.weight, std=0.03)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        affinity = (self.dropout(self.user(user)) * self.item(item)).sum(1)
        bias = self.user_bias(user) + self.item_bias(item)
        rating: Tensor = self.offset + bias.squeeze(1) + affinity
        return rating


def load_ratings() -> Tensor:
    """Rows of user, item and rating, int64 (100000, 3), shuffled by a fixed seed."""
    recbole = find_spec("recbole")
    if recbole is None or not recbole.submodule_search_locations:
        raise SystemExit("MovieLens is missing: pip install --no-deps recbole==1.2.1")
    folder = Path(recbole.submodule_search_locations[0]) / "dataset_example/ml-100k"
    rows = np.loadtxt(folder / "ml-100k.inter", np.int64, skiprows=1, usecols=(0, 1, 2))
    order = torch.Generator().manual_seed(2020)
    return torch.from_numpy(rows)[torch.randperm(len(rows), generator=order)]


@torch.no_grad()
def rmse(model: Recommender, rows: Tensor) -> float:
    """Root of the mean squared error of the predicted ratings."""
    user, item, rating = rows.T
    predicted = model.eval()(user, item).clamp(1, 5)
    return float((predicted - rating).square().mean().sqrt())


def update(
    model: Recommender,
    optimizer: stratagem.DistributedOptimizer,
    user: Tensor,
    item: Tensor,
    rating: Tensor,
) -> Tensor:
    """Trains on a batch in one replica; returns the loss."""
    loss = functional.mse_loss(model.train()(user, item), rating.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


class Options(NamedTuple):
    """How to train."""

    seed: int = 0
    epochs: int = EPOCHS
    compression: Compression | str | None = None  # of gradients
    pull_dtype: torch.dtype | None = None
    checkpoints: Path | None = None  # a folder that gets one after each epoch
    publish_every: float | None = None  # seconds


def train(resolver: ClusterResolver, folder: Path, options: Options) -> float:
    """One worker's whole program; returns the error on the held-out ratings."""
    worker, workers = resolver.task_id or 0, resolver.cluster_spec().num_tasks("worker")
    torch.manual_seed(options.seed * workers + worker)
    ratings = load_ratings()
    mine = ratings[HELD_OUT:][worker::workers]

    strategy = stratagem.ParameterServerStrategy(resolver, pull_dtype=options.pull_dtype)
    with strategy.scope():
        model = Recommender()
    adamw = torch.optim.AdamW(model.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    optimizer = stratagem.DistributedOptimizer(adamw, compression=options.compression)
    steps = options.epochs * (len(mine) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    step = partial(update, model, optimizer)
    strategy.barrier("start")
    before = strategy.traffic()
    losses = []
    seconds = None if worker else options.publish_every
    publishing = strategy.publish_every(seconds=seconds) if seconds else nullcontext()
    with publishing, tqdm(total=steps, unit="step", disable=worker > 0) as progress:
        for _ in range(options.epochs):
            for batch in torch.randperm(len(mine)).split(BATCH):
                losses.append(strategy.run(step, args=tuple(mine[batch].T)))
                strategy.log({"loss": losses[-1]})  # for `stratagem dashboard`
                schedule.step()
                progress.update()
            if options.checkpoints and worker == 0:
                strategy.save(options.checkpoints, keep=2, wait=False)
    traffic = strategy.traffic() - before
    strategy.barrier("trained")
    with torch.no_grad():
        error: float = strategy.run(rmse, args=(model, ratings[:HELD_OUT]))
    if worker == 0:
        keep(model, losses, options.epochs, folder)
        show_placement(strategy)
        print(f"{progress.n / progress.format_dict['elapsed']:.0f} steps/s per worker")
        pushed, pulled = traffic.sent_bytes / steps, traffic.received_bytes / steps
        print(f"{pushed:,.0f} bytes pushed a step, {pulled:,.0f} pulled")
    strategy.barrier("reported")
    return error


def keep(model: Recommender, losses: list[Tensor], epochs: int, folder: Path) -> None:
    """Writes the trained model and a picture of its training."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    errors = torch.stack(losses).reshape(epochs, -1).mean(1).sqrt()
    axes.plot(range(1, epochs + 1), errors)
    axes.set(xlabel="epoch", ylabel="training RMSE", title="MovieLens-100K")
    figure.savefig(folder / "curve.png", dpi=150)


def show_placement(strategy: stratagem.ParameterServerStrategy) -> None:
    """Prints where each variable lives."""
    table = Table("variable", "shape", "server", "bytes")
    for place in strategy.extended.variable_placements():
        table.add_row(place.name, str(list(place.shape)), place.server, f"{place.nbytes:,}")
    Console().print(table)


def main() -> None:
    """Runs the worker that TF_CONFIG describes."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--compression", choices=COMPRESSIONS, default="none")
    parser.add_argument("--pull", choices=PULLED_AS, default="exact")
    parser.add_argument("--save", type=Path, help="folder of a checkpoint per epoch")
    parser.add_argument("--publish", type=float, metavar="SECONDS", help="between versions")
    options = parser.parse_args()
    resolver = TFConfigClusterResolver()
    chosen = Options(
        seed=options.seed,
        compression=COMPRESSIONS[options.compression],
        pull_dtype=PULLED_AS[options.pull],
        checkpoints=options.save,
        publish_every=options.publish,
    )
    error = train(resolver, Path("runs/movielens"), chosen)
    if resolver.task_id == 0:
        print(f"demo: test RMSE {error:.4f}")


if __name__ == "__main__":
    main()

"""A recommender that goes on after the end of any of its processes, or of all of them. To copy.

    stratagem run --ps 2 --workers 2 --max-restarts 100 \
        --durability log --durability-folder runs/resuming/servers \
        examples/resuming.py runs/resuming

Kill what you like, whenever you like, and start the command again if all has ended: the error at
the end is that of a run in which nothing happened, to the bit. Each rating is used once in an
epoch.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Sampler

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver

USERS, FILMS, HELD_OUT = 944, 1683, 20_000
BATCH, RATE, SEED = 1000, 0.02, 7

# What supervisors take for "try again".
AGAIN = 75


class Ratings(Dataset[tuple[Tensor, ...]]):
    """Ratings of films by users; an element is the user, the film, the rating and its own number.

    Args:
        rows: Users, films and ratings, int64 (ratings, 3).
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        user, film, rating = self.rows[number]
        return user, film, rating.float(), torch.tensor(number)


class Shuffled(Sampler[list[int]]):
    """The batches of one worker in an epoch, in another order each epoch.

    The order follows from the number of the epoch alone, so whoever is started again goes on with
    the batch that is next. All workers have as many batches, and share all numbers.
    """

    def __init__(self, size: int, epoch: int, worker: int, workers: int, first: int) -> None:
        order = torch.randperm(size, generator=torch.Generator().manual_seed(SEED + epoch))
        mine = order[worker::workers].tensor_split(batches_of(size, workers))
        self._batches = [batch.tolist() for batch in mine[first:]]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)


def batches_of(size: int, workers: int) -> int:
    """How many batches each worker has in an epoch."""
    return -(-size // (workers * BATCH))


class Recommender(nn.Module):
    """Ratings of films by users, from the products of their vectors."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.user, self.film = nn.Embedding(USERS, dim), nn.Embedding(FILMS, dim)
        self.user_bias, self.film_bias = nn.Embedding(USERS, 1), nn.Embedding(FILMS, 1)
        self.offset = nn.Parameter(torch.tensor(3.0))
        self.dropout = nn.Dropout()
        for table in (self.user, self.film, self.user_bias, self.film_bias):
            nn.init.normal_(table.weight, std=0.03)

    def forward(self, user: Tensor, film: Tensor) -> Tensor:
        affinity = (self.dropout(self.user(user)) * self.film(film)).sum(1)
        bias = self.user_bias(user) + self.film_bias(film)
        rating: Tensor = self.offset + bias.squeeze(1) + affinity
        return rating


def load_ratings() -> Tensor:
    """Rows of user, film and rating, int64 (100000, 3), shuffled by a fixed seed."""
    recbole = find_spec("recbole")
    if recbole is None or not recbole.submodule_search_locations:
        raise SystemExit("MovieLens is missing: pip install --no-deps recbole==1.2.1")
    folder = Path(recbole.submodule_search_locations[0]) / "dataset_example/ml-100k"
    rows = np.loadtxt(folder / "ml-100k.inter", np.int64, skiprows=1, usecols=(0, 1, 2))
    order = torch.Generator().manual_seed(SEED)
    return torch.from_numpy(rows)[torch.randperm(len(rows), generator=order)]


@torch.no_grad()
def rmse(model: Recommender, rows: Tensor) -> float:
    """Root of the mean squared error of the predicted ratings."""
    user, film, rating = rows.T
    predicted = model.eval()(user, film).clamp(1, 5)
    return float((predicted - rating).square().mean().sqrt())


class Options(NamedTuple):
    """How to train."""

    epochs: int = 30  # at most
    patience: int = 3  # epochs without a lower error after which it stops
    save_every: int = 10  # steps
    consistency: str = "sync"
    ratings: int = 80_000  # to train on


class Result(NamedTuple):
    """What has come out."""

    error: float
    epochs: int
    fewest: int  # how often a rating was used
    most: int


class Training:
    """What one worker trains: everything is made here, before it resumes."""

    def __init__(self, resolver: ClusterResolver, folder: Path, options: Options) -> None:
        cluster = resolver.cluster_spec()
        self.worker = resolver.task_id or 0
        self.workers = cluster.num_tasks("worker") if cluster.jobs else 1
        self.folder, self.options = folder, options
        rows = load_ratings()
        self.data = Ratings(rows[HELD_OUT:][: options.ratings])
        self.held_out = rows[:HELD_OUT]
        self.steps = batches_of(len(self.data), self.workers)  # of an epoch
        torch.manual_seed(SEED)
        self.strategy = stratagem.ParameterServerStrategy(resolver, consistency=options.consistency)
        with self.strategy.scope():
            self.model = Recommender()
            # On the servers, too: the error after each epoch, and how often each rating was used.
            unknown, unused = torch.full((options.epochs,), torch.nan), torch.zeros(len(self.data))
            self.errors = stratagem.Variable(unknown, trainable=False, name="errors")
            self.used = stratagem.Variable(unused, trainable=False, name="used")
        adamw = torch.optim.AdamW(self.model.parameters(), RATE, weight_decay=0.3)
        self.optimizer = stratagem.DistributedOptimizer(adamw)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            self.optimizer, factor=0.3, patience=1
        )

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    def take_epoch(self, epoch: int, position: int, notice: stratagem.Notice) -> None:
        """Takes the steps of an epoch that are left, of which this worker has taken some before."""
        first = max(0, position - epoch * self.steps)
        batches = Shuffled(len(self.data), epoch, self.worker, self.workers, first)
        loader = DataLoader(self.data, batch_sampler=batches, num_workers=1) if batches else ()
        counted = zip(self.strategy.steps(self.steps), loader, strict=False)
        for step, batch in notice.until(counted):
            # A step that is repeated drops out the same.
            torch.manual_seed(SEED + (epoch * self.steps + step) * self.workers + self.worker)
            self.strategy.run(self.update, args=tuple(batch))
            if step % self.options.save_every == self.options.save_every - 1:
                self.save(epoch, wait=False)

    def update(self, user: Tensor, film: Tensor, rating: Tensor, numbers: Tensor) -> None:
        """Trains on a batch."""
        loss = functional.mse_loss(self.model.train()(user, film), rating)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.used.scatter_add(stratagem.IndexedSlices(torch.ones(len(numbers)), numbers))

    def save(self, epoch: int, wait: bool) -> None:
        """Has the servers write a checkpoint, which is for the chief to ask for."""
        if self.worker == 0:
            self.strategy.save(self.checkpoints, wait=wait, keep=2, extra={"epoch": epoch})

    def evaluate(self, epoch: int) -> Tensor:
        """Returns the errors after all epochs so far, once all workers have taken this one."""
        self.strategy.barrier(f"trained-{epoch}")
        known: Tensor = self.errors.read_value()
        if self.worker == 0 and known[epoch].isnan():
            # Who was started again after its last step has not seen those of others since.
            self.strategy.refresh()
            known[epoch] = rmse(self.model, self.held_out)
            if known[epoch] == known[: epoch + 1].min():
                # For plain PyTorch, with tables of any size.
                self.strategy.export(self.model, self.folder / "model.safetensors")
            self.errors.assign(known)
        self.strategy.barrier(f"evaluated-{epoch}")
        return self.errors.read_value()[: epoch + 1]

    def has_converged(self, errors: Tensor) -> bool:
        """Whether to stop: on all workers, since all have read the same."""
        return len(errors) - 1 - int(errors.argmin()) >= self.options.patience


def train(resolver: ClusterResolver, folder: Path, options: Options) -> Result:
    """The whole program of one worker, from its first start, or from where its task is."""
    training = Training(resolver, folder, options)
    run = training.strategy.resume(training.checkpoints)
    errors = torch.zeros(0)
    with stratagem.Notice() as notice:
        # Epochs that are over have no steps left and are not evaluated again, so the schedule and
        # the decision to stop come to where they were.
        for epoch in range(options.epochs):
            training.take_epoch(epoch, run.position, notice)
            if notice.given:  # this process is to be stopped: another one goes on
                training.save(epoch, wait=True)
                sys.exit(AGAIN)
            errors = training.evaluate(epoch)
            training.schedule.step(errors[-1])
            if training.has_converged(errors):
                break
    run.finish(extra={"errors": errors.tolist()})
    counts = training.used.read_value()
    return Result(float(errors.min()), len(errors), int(counts.min()), int(counts.max()))


def main() -> None:
    """Runs the worker that TF_CONFIG describes."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, help="which all machines share")
    parser.add_argument("--epochs", type=int, default=Options().epochs)
    parser.add_argument("--patience", type=int, default=Options().patience)
    parser.add_argument("--save-every", type=int, default=Options().save_every)
    parser.add_argument("--consistency", choices=("sync", "async"), default="sync")
    parser.add_argument("--ratings", type=int, default=Options().ratings)
    options = vars(parser.parse_args())
    resolver = TFConfigClusterResolver()
    folder = options.pop("folder")
    if not resolver.task_id:  # the other workers only read
        folder.mkdir(parents=True, exist_ok=True)
    result = train(resolver, folder, Options(**options))
    if not resolver.task_id:
        print(
            f"error {result.error!r} after {result.epochs} epochs; "
            f"each rating was used {result.fewest} to {result.most} times"
        )


if __name__ == "__main__":
    main()

"""A click model with 38.5 million embedded ids, whose tables are only on servers.

Every worker of the cluster runs this file:

    stratagem run --ps 3 --workers 2 examples/dlrm.py [--small] [--device cuda:0]

One MLP turns the measurements of an example into a vector. Each of its 26 ids has a vector in a
table on the servers, and another MLP sees the products of all pairs. With `--device cuda:0`
everything but the tables is on that GPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from tqdm import tqdm

import stratagem
from stratagem.cluster_resolver import ClusterResolver, TFConfigClusterResolver

if TYPE_CHECKING or __package__:
    from examples.clicks.log import Batch, ClickLog
    from examples.clicks.report import Training, memory, report
    from examples.clicks.restoring import require_equal
    from examples.clicks.training import Trainer
else:  # a script sees what lies beside it
    from clicks.log import Batch, ClickLog
    from clicks.report import Training, memory, report
    from clicks.restoring import require_equal
    from clicks.training import Trainer

HELD_OUT = 2**40
"""From here on the log's examples are not for training."""

RESTORED_ON = 2, 5
"""Numbers of servers on which the checkpoint must be the same."""


@dataclass(frozen=True)
class Plan:
    """How much to train.

    Attributes:
        batch: Examples of a worker's step.
        steps: Steps of each worker.
        tested: Examples to test with.
    """

    batch: int
    steps: int
    tested: int

    @property
    def examples(self) -> int:
        """How many each worker trains on."""
        return self.batch * self.steps


FULL, SMALL = Plan(2048, 400, 100_000), Plan(512, 30, 8192)


def train(resolver: ClusterResolver, plan: Plan, device: torch.device, folder: Path) -> None:
    """One worker's whole program.

    Raises:
        SystemExit: Memory grew too much, the loss did not fall, or the checkpoint that was taken
            meanwhile is not the same on other numbers of servers.
    """
    # What torch loads with the first optimizer is not the tables'.
    torch.optim.SGD([torch.empty(0)])
    before = memory("VmRSS")
    strategy = stratagem.ParameterServerStrategy(resolver)
    trainer, log = Trainer(strategy, device), ClickLog()
    worker = resolver.task_id or 0
    strategy.barrier("start")
    start, traffic = time.perf_counter(), strategy.traffic()
    mine = log.batches(worker * plan.examples, plan.examples, plan.batch)
    progress = tqdm(trainer.ahead(mine), total=plan.steps, unit="step", disable=worker > 0)
    losses, saved = steps(trainer, progress, plan.steps // 2, folder)
    training = Training(
        plan.batch,
        losses,
        time.perf_counter() - start,
        trainer.watch.seconds,
        strategy.traffic() - traffic,
        memory("VmHWM") - before,
    )
    strategy.barrier("trained")
    if worker == 0:
        test = trainer.test(log.batches(HELD_OUT, plan.tested, plan.batch))
        Console().print(report(training, test))
        saved.result()
        require_equal(folder, RESTORED_ON, log.batch(HELD_OUT, plan.batch))
        print("The checkpoint taken while training is the same on 2 servers and on 5.")
    strategy.barrier("reported")
    training.require_success()


def steps(
    trainer: Trainer, batches: Iterable[Batch], until: int, folder: Path
) -> tuple[list[float], Future[None]]:
    """Takes a step on each batch, and after some of them has the servers save."""
    losses, saved = [], Future[None]()
    for batch in batches:
        losses.append(trainer.train(batch))
        if len(losses) == until:
            saved = trainer.strategy.save(folder, wait=False)
    return losses, saved


def main(
    small: Annotated[bool, typer.Option(help="Train for some seconds only.")] = False,
    device: Annotated[str, typer.Option(help="cpu, or a GPU as in cuda:0.")] = "cpu",
    folder: Annotated[Path, typer.Option(help="Of checkpoints.")] = Path("runs/dlrm"),
) -> None:
    """Run the worker that TF_CONFIG describes."""
    used = torch.device(device)
    # A strategy takes all GPUs that it sees.
    index = str(used.index or 0)
    os.environ["CUDA_VISIBLE_DEVICES"] = index if used.type == "cuda" else ""
    if used.type == "cuda":
        if not torch.cuda.is_available():
            raise typer.BadParameter(f"this machine has no {device}")
        used = torch.device("cuda", 0)
    folder.parent.mkdir(parents=True, exist_ok=True)
    train(TFConfigClusterResolver(), SMALL if small else FULL, used, folder)


if __name__ == "__main__":
    typer.run(main)

"""`python -m benchmarks.freshness`: how soon a reader server answers with a step, and its price.

Two workers train the demo's model on two servers, and a reader server follows them. Each step of a
worker also raises a number of its own, so that each answer tells which steps are in it. In every
other window nothing is published, so that both throughputs are those of one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import torch
import typer
from torch import Tensor, nn
from torch.nn import functional

import stratagem
from benchmarks.harness.machine import load, machine
from benchmarks.harness.table import Table
from examples.movielens import BATCH, HELD_OUT, RATE, WEIGHT_DECAY, Recommender, load_ratings
from stratagem.cluster_resolver import SimpleClusterResolver
from stratagem_deploy import LocalCluster
from stratagem_reader.lookup_client import LookupClient, Wanted

WORKERS = 2
_POLL_SECONDS = 0.005
_START_SECONDS = 60.0


class Plan(NamedTuple):
    """What a worker does.

    Attributes:
        folder: Where the reader server says that it is ready.
        windows: How many windows with versions, and as many without.
        seconds: How long a window is.
        every: The seconds between two versions.
    """

    folder: Path
    windows: int
    seconds: float
    every: float


class Counted(nn.Module):
    """The model of the demo, and how many steps each worker has taken."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Recommender()
        self.steps = nn.Parameter(torch.zeros(WORKERS))


def work(resolver: SimpleClusterResolver, plan: Plan) -> list[list[float]]:
    """A worker's whole program; returns when its steps have ended, for each window in turn."""
    worker = resolver.task_id or 0
    strategy = stratagem.ParameterServerStrategy(resolver)
    with strategy.scope():
        counted = Counted()
    model = counted.model
    adamw = torch.optim.AdamW(model.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    optimizers = [
        stratagem.DistributedOptimizer(adamw),
        stratagem.DistributedOptimizer(torch.optim.SGD([counted.steps], lr=1.0)),
    ]
    ratings = load_ratings()[HELD_OUT:][worker::WORKERS]

    def step(user: Tensor, item: Tensor, rating: Tensor) -> None:
        error = functional.mse_loss(model.train()(user, item), rating.float())
        (error - counted.steps[worker]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    if worker == 0:
        strategy.publish()
    with serving(resolver, plan.folder) if worker == 0 else nullcontext():
        windows = []
        for number in range(2 * plan.windows):
            strategy.barrier(f"window-{number}")
            publishes = worker == 0 and number % 2 == 0
            with strategy.publish_every(seconds=plan.every) if publishes else nullcontext():
                windows.append(_train(strategy, step, ratings, plan.seconds))
            if publishes:
                strategy.publish()
        strategy.barrier("over")
    return windows


def _train(
    strategy: stratagem.ParameterServerStrategy,
    step: Callable[..., None],
    ratings: Tensor,
    seconds: float,
) -> list[float]:
    ended, end = [], time.time() + seconds
    while time.time() < end:
        batch = ratings[torch.randint(len(ratings), (BATCH,))]
        strategy.run(step, args=tuple(batch.T))
        ended.append(time.time())
    return ended


@contextmanager
def serving(resolver: SimpleClusterResolver, folder: Path) -> Iterator[None]:
    """Run a reader server of the cluster."""
    servers = ",".join(filter(None, resolver.cluster_spec().job_tasks("ps")))
    ready, token = folder / "ready", folder / "token"
    token.write_text(resolver.cluster_token or "")
    token.chmod(0o600)
    command = [sys.executable, "-m", "stratagem_deploy.cli", "serve", "--from", servers]
    command += ["--token-file", str(token), "--ready-file", str(ready)]
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=own) as process:
        try:
            end = time.monotonic() + _START_SECONDS
            while not ready.exists():
                if time.monotonic() > end or process.poll() is not None:
                    raise SystemExit("the reader server did not start")
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            process.kill()


def watch(folder: Path, over: threading.Event, seen: list[tuple[float, list[float]]]) -> None:
    """Note what the reader server answers, and when."""
    ready = folder / "ready"
    while not ready.exists():
        if over.wait(_POLL_SECONDS):
            return
    client = LookupClient(json.loads(ready.read_text())["address"], (folder / "token").read_text())
    rows = torch.arange(WORKERS)
    while not over.wait(_POLL_SECONDS):
        try:
            answer = client.look_up([Wanted("steps", rows)]).rows[0]
        except stratagem.StratagemError:
            continue  # it is over soon
        seen.append((time.time(), answer.tolist()))
    client.close()


def delays(
    windows: Sequence[Sequence[Sequence[float]]], seen: Sequence[tuple[float, list[float]]]
) -> list[float]:
    """Return the seconds from the end of each step to the first answer with it, ascending.

    Args:
        windows: For each worker, when its steps have ended, for each window.
        seen: When there was an answer, and how many steps of each worker were in it.
    """
    found = []
    for worker, ended in enumerate(windows):
        taken, counts = 0, [round(answer[worker]) for _, answer in seen]
        for number, window in enumerate(ended):
            for end in window:
                taken += 1
                at = bisect_left(counts, taken)
                if number % 2 == 0 and at < len(seen):
                    found.append(seen[at][0] - end)
    return sorted(found)


def main(
    windows: Annotated[int, typer.Option(min=1, help="Windows with versions.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.5, help="Of a window.")] = 5.0,
    every: Annotated[float, typer.Option(min=0.01, help="Seconds between versions.")] = 0.2,
) -> None:
    """Measure how soon a reader server answers with a step, and the throughput beside it."""
    before = load()
    with TemporaryDirectory() as name, LocalCluster(ps=2, workers=WORKERS) as cluster:
        plan = Plan(Path(name), windows, seconds, every)
        over, seen = threading.Event(), list[tuple[float, list[float]]]()
        watcher = threading.Thread(target=watch, args=(plan.folder, over, seen))
        watcher.start()
        try:
            ended = cluster.run(work, plan)
        finally:
            over.set()
            watcher.join()
    waits = delays(ended, seen)
    if not waits:
        raise SystemExit("no answer had a step")
    steps = [sum(len(each[number]) for each in ended) for number in range(2 * windows)]
    ratio = sorted(w / wo for w, wo in zip(steps[::2], steps[1::2], strict=True))
    rows = [
        ["steps seen", f"{len(waits):,}"],
        ["end of a step to an answer with it, median", f"{1e3 * _at(waits, 0.5):.0f} ms"],
        ["p99", f"{1e3 * _at(waits, 0.99):.0f} ms"],
        ["throughput with versions over without, median of windows", f"{_at(ratio, 0.5):.2f}"],
        ["each window", ", ".join(f"{each:.2f}" for each in ratio)],
        ["steps/s without versions", f"{sum(steps[1::2]) / windows / seconds:,.0f}"],
    ]
    print(Table(["", f"a version each {every:g} s"], rows).markdown())
    about = machine() | {"load before": before, "load after": load()}
    print(", ".join(f"{name} {value}" for name, value in about.items()))


def _at(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


if __name__ == "__main__":
    typer.run(main)

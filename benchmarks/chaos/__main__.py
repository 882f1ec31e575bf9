"""`python -m benchmarks.chaos --minutes 10`: the demo, while processes fail every two seconds."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks.chaos.faults import Fault, Faults
from benchmarks.chaos.picture import drawn
from benchmarks.chaos.training import Trained, train
from benchmarks.harness.table import Table
from stratagem_deploy import LocalCluster

SERVERS, WORKERS = 2, 2

# The demo's error, 0.911, differs by less than this between runs.
ERROR, NOISE = 0.911, 0.012

_FOLDER = Path("runs/benchmarks")
_START_SECONDS = 300.0


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long at least.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of what goes wrong.")] = 0,
) -> None:
    """Train the demo again and again on servers with backups, while processes fail.

    Exit code: 0 when each training came to the demo's error and has counted each batch once in each
    epoch; else 1.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    steps: list[float] = []
    happened: list[Fault] = []
    trained: list[Trained] = []
    began, chance = time.monotonic(), random.Random(seed)
    bar: tqdm[Any]
    with tqdm(unit="step") as bar:
        while time.monotonic() - began < 60.0 * minutes:
            with _failing(chance, happened) as cluster:
                trained.append(train(cluster, lambda now: _note(steps, now, bar)))
    picture = _FOLDER / "chaos.png"
    drawn(steps, happened).savefig(picture, dpi=150)
    print(_table(trained, happened).markdown())
    print(f"{len(steps)} steps in {time.monotonic() - began:.0f} s; {picture}")
    if not all(map(is_right, trained)):
        raise SystemExit("a training was not what it is without faults")


def _note(steps: list[float], now: float, bar: tqdm[Any]) -> None:
    steps.append(now)
    bar.update()


def is_right(trained: Trained) -> bool:
    """Return whether a training came to what it comes to without faults."""
    return not trained.uncounted and abs(trained.error - ERROR) < NOISE


@contextmanager
def _failing(chance: random.Random, happened: list[Fault]) -> Iterator[LocalCluster]:
    """A cluster whose processes fail until the end of the block."""
    with LocalCluster(
        SERVERS,
        worker_servers=WORKERS,
        processes=True,
        replicas=2,
        start_timeout=_START_SECONDS,
    ) as cluster:
        faults = Faults(cluster, SERVERS, WORKERS, chance)
        failures: list[Exception] = []
        thread = threading.Thread(target=_run, args=(faults, failures), name="chaos")
        thread.start()
        try:
            yield cluster
        finally:
            faults.end()
            thread.join()
            happened += faults.happened
        for failure in failures:
            raise failure


def _run(faults: Faults, failures: list[Exception]) -> None:
    try:
        faults.run()
    except Exception as failure:
        failures.append(failure)


def _table(trained: list[Trained], happened: list[Fault]) -> Table:
    counted = Counter(fault.kind for fault in happened)
    errors = ", ".join(f"{each.error:.4f}" for each in trained)
    rows = [[kind, str(number)] for kind, number in sorted(counted.items())]
    rows += [["RMSE of each training", errors]]
    rows += [["ratings not counted once an epoch", str(sum(each.uncounted for each in trained))]]
    return Table(["", ""], rows)


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

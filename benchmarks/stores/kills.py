"""Killing a cluster at a random moment of its saves, and looking at what it leaves."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stores.saving import SERVERS, save_forever
from stratagem_deploy import LocalCluster
from stratagem_proto.errors import NotFoundError
from stratagem_storage.checkpoint.folder import open_checkpoint
from stratagem_storage.checkpoint.wholes import wholes_of

# In which there are some saves to a server on this machine.
_MOST_SECONDS = 2.0

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.01


@dataclass(frozen=True)
class Kill:
    """What a kill left.

    Attributes:
        acknowledged: The number of the last checkpoint that the program knew to be saved.
        found: The number of the latest one that is there.
        faults: What is wrong with it.
    """

    acknowledged: int
    found: int
    faults: tuple[str, ...]


def kills(url: str, count: int, seed: int, folder: Path) -> Iterator[Kill]:
    """Yield what each kill left; each run goes on from what the one before left.

    Args:
        url: Where the program saves.
        count: How often to kill.
        seed: Of the moments.
        folder: For a file of the program.
    """
    generator = random.Random(seed)
    for number in range(count):
        acknowledged = _killed(url, folder / str(number), generator)
        found, faults = _look(url)
        if found < acknowledged:
            faults = (*faults, f"{acknowledged} was saved, and the latest is {found}")
        yield Kill(acknowledged, found, faults)


def _cluster() -> LocalCluster:
    return LocalCluster(ps=SERVERS, workers=1, processes=True)


def _killed(url: str, saved: Path, generator: random.Random) -> int:
    """Start a cluster, kill all of it at a random moment, and return what it had saved."""
    tasks = [("worker", 0), *(("ps", task) for task in range(SERVERS))]
    generator.shuffle(tasks)
    with ThreadPoolExecutor(1) as threads, _cluster() as cluster:
        run = threads.submit(cluster.run, save_forever, url, saved)
        give_up_at = time.monotonic() + _START_SECONDS
        while not (saved.exists() or run.done() or time.monotonic() > give_up_at):
            time.sleep(_LOOK_SECONDS)
        time.sleep(generator.random() * _MOST_SECONDS)  # what is tried
        if run.done():
            run.result()
        for job, task in tasks:
            cluster.kill(job, task)
        # It says that they were killed.
        run.exception()
    return int(saved.read_text())


def _look(url: str) -> tuple[int, tuple[str, ...]]:
    """Return the number of the latest checkpoint, all of which is read, and what is wrong."""
    try:
        checkpoint = open_checkpoint(url)
    except NotFoundError:
        return 0, ()
    checkpoint.verify()
    number = int(checkpoint.index.extra["number"])
    faults = [
        f"{name} has {value.unique().tolist()} in checkpoint {number}"
        for name, whole in wholes_of(checkpoint.index).items()
        if ((value := whole.read(checkpoint)) != number).any()
    ]
    return number, tuple(faults)

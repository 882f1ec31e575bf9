"""What workers and coordinators do until they are held up."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import nn

import stratagem
from stratagem import ClusterSpec, ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver

Link: TypeAlias = tuple[int, int]
"""A worker and a server."""

_FAR_SECONDS = 3600.0


def train(
    resolver: SimpleClusterResolver,
    folder: Path,
    places: Mapping[Link, str],
    absent: int | None,
    sizes: Sequence[int],
) -> None:
    """Train until the process is killed.

    Args:
        resolver: The cluster.
        folder: Its files tell which worker is to stand still, and how.
        places: The addresses at which workers meet servers, where those are not their own.
        absent: The worker that does not come.
        sizes: The number of elements of each server's variable.
    """
    worker = resolver.task_id or 0
    (folder / f"worker:{worker}.pid").write_text(str(os.getpid()))
    if worker == absent:
        time.sleep(_FAR_SECONDS)
    strategy = ParameterServerStrategy(_elsewhere(resolver, places), consistency="sync")
    with strategy.scope():
        module = nn.ParameterList([torch.zeros(size) for size in sizes])
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(module.parameters(), lr=0.1))

    def step(batch: torch.Tensor) -> None:
        if (folder / f"lock-{worker}").exists():
            _take_a_held_lock()
        for parameter in module:
            parameter.grad = torch.full_like(parameter, float(batch))
        optimizer.step()

    for number, batch in enumerate(_batches(folder / f"block-{worker}")):
        strategy.run(step, args=(batch,))
        (folder / f"steps-{worker}").write_text(str(number))


def _elsewhere(
    resolver: SimpleClusterResolver, places: Mapping[Link, str]
) -> SimpleClusterResolver:
    """Return the cluster with servers at these addresses."""
    tasks, worker = resolver.cluster_spec().as_dict(), resolver.task_id or 0
    servers = [places.get((worker, index), str(own)) for index, own in enumerate(tasks["ps"])]
    spec = ClusterSpec({"ps": servers, "worker": [*map(str, tasks["worker"])]})
    found = SimpleClusterResolver(spec, task_type=resolver.task_type, task_id=resolver.task_id)
    found.cluster_token = resolver.cluster_token
    return found


def _batches(blocked: Path) -> Iterator[torch.Tensor]:
    """Yield batches until there is that file, and then wait for one that never comes."""
    source: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    while True:
        if not blocked.exists():
            source.put(torch.rand(()))
        yield source.get()


def _take_a_held_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

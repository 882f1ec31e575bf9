"""Synchronous training, compared with the bytes of one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

import stratagem
from benchmarks.kills.attack import SERVERS, WORKERS, Attack
from benchmarks.kills.victims import Servers
from stratagem import ParameterServerStrategy
from stratagem.cluster_resolver import SimpleClusterResolver

_SIZES = 7, 5


def in_lockstep(attack: Attack) -> list[str]:
    """Have workers train while servers are killed; return what is wrong."""
    with attack.cluster(workers=WORKERS) as running, attack.on(Servers(running, SERVERS)):
        trained = running.run(_train, attack.end)
    (steps,) = {steps for steps, _ in trained}
    alone = _trained_alone(steps)
    return [f"other bytes after {steps} steps" for _, values in trained if values != alone]


def _gradients(step: int, worker: int) -> Sequence[torch.Tensor]:
    return [torch.full((size,), float((3 * step + size) % 5 + worker)) for size in _SIZES]


def _train(resolver: SimpleClusterResolver, end: Path) -> tuple[int, list[list[float]]]:
    strategy = ParameterServerStrategy(resolver, consistency="sync")
    with strategy.scope():
        module = torch.nn.ParameterList([torch.zeros(size) for size in _SIZES])
    optimizer = stratagem.DistributedOptimizer(torch.optim.Adam(module.parameters(), lr=0.1))
    worker, number = resolver.task_id or 0, 0

    def step() -> None:
        for parameter, gradient in zip(module, _gradients(number, worker), strict=True):
            parameter.grad = gradient
        optimizer.step()

    while number != _last(end, worker, number):
        strategy.run(step)
        number += 1
    strategy.refresh()
    return number, [parameter.detach().tolist() for parameter in module]


def _last(end: Path, worker: int, done: int) -> int | None:
    """Return the number of steps to take; None if nobody knows yet.

    Worker 0 decides after one of its steps. The others are at most one step further, since the one
    after that needs its gradients.
    """
    file = end.with_name("last")
    if worker == 0 and end.exists() and not file.exists():
        new = file.with_suffix(".new")
        new.write_text(str(done + 2))
        new.rename(file)
    return int(file.read_text()) if file.exists() else None


def _trained_alone(steps: int) -> list[list[float]]:
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in _SIZES]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    for number in range(steps):
        parts = [_gradients(number, worker) for worker in range(WORKERS)]
        for parameter, *each in zip(parameters, *parts, strict=True):
            parameter.grad = sum(each[1:], each[0].clone())
        optimizer.step()
    return [parameter.detach().tolist() for parameter in parameters]

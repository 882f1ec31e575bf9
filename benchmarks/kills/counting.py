"""Workers that count steps on the servers, and compare that with what was acknowledged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

import stratagem
from benchmarks.kills.attack import SERVERS, WORKERS, Attack
from benchmarks.kills.victims import Servers, Workers
from stratagem import ParameterServerStrategy, Variable
from stratagem.cluster_resolver import SimpleClusterResolver


class Counters(NamedTuple):
    """What one worker counts, in several parts that are on different servers.

    Attributes:
        add: Adds 1 to each part.
        read: Returns the parts.
    """

    add: Callable[[], object]
    read: Callable[[], list[int]]


Kind: TypeAlias = Callable[[ParameterServerStrategy, int], Counters]
"""Makes the counters of a worker, and those of the other ones, which it does not use."""


def _variables(strategy: ParameterServerStrategy) -> list[list[Variable]]:
    with strategy.scope():
        return [
            [Variable(torch.tensor(0), False, name=f"{worker}on{ps}") for ps in range(SERVERS)]
            for worker in range(WORKERS)
        ]


def variables(strategy: ParameterServerStrategy, worker: int) -> Counters:
    """Plain variables, in steps of a replica."""
    mine = _variables(strategy)[worker]

    def step() -> None:
        for counter in mine:
            counter.assign_add(1)

    return Counters(lambda: strategy.run(step), lambda: [int(each.numpy()) for each in mine])


def update_functions(strategy: ParameterServerStrategy, worker: int) -> Counters:
    """Functions that servers run on a variable."""
    mine = _variables(strategy)[worker]

    def add() -> None:
        for counter in mine:
            strategy.extended.update(counter, lambda value: value.assign_add(1))

    return Counters(add, lambda: [int(each.numpy()) for each in mine])


def rows(strategy: ParameterServerStrategy, worker: int) -> Counters:
    """Rows of a table by keys, which an optimizer steps."""
    with strategy.scope():
        table = stratagem.nn.DynamicEmbedding(1)
        torch.nn.init.zeros_(table.weight)
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0))
    keys = torch.arange(8) * WORKERS + worker

    def step() -> None:
        optimizer.zero_grad()
        table(keys).sum().neg().backward()
        optimizer.step()

    def read() -> list[int]:
        with torch.no_grad():
            return [int(value) for value in table(keys).flatten()]

    return Counters(lambda: strategy.run(step), read)


def count(resolver: SimpleClusterResolver, end: Path, kind: Kind, consistency: str) -> list[str]:
    """Count until there is an end, and return what is wrong.

    After a kill the worker goes on from what was acknowledged. What was not may be there, once.
    """
    strategy = ParameterServerStrategy(resolver, consistency=consistency)
    worker = resolver.task_id or 0
    counters, file = kind(strategy, worker), end.with_name(f"acknowledged-{worker}")
    faults, known = _resumed(counters.read(), file)
    while not end.exists():
        counters.add()
        known = [each + 1 for each in known]
        _keep(file, faults, known)
    return faults + differences(counters.read(), known, most=0)


def _resumed(there: list[int], file: Path) -> tuple[list[str], list[int]]:
    faults, known, most = [], [0] * len(there), 0
    if file.exists():
        (faults, known), most = json.loads(file.read_text()), 1
    faults += differences(there, known, most)
    # Before the first step, too, which a kill may leave without an acknowledgement.
    _keep(file, faults, there)
    return faults, there


def _keep(file: Path, faults: list[str], known: list[int]) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps([faults, known]))
    os.replace(new, file)


def differences(there: list[int], known: list[int], most: int) -> list[str]:
    """Return what was lost, and what is there more than so many times too often."""
    pairs = [value - acknowledged for value, acknowledged in zip(there, known, strict=True)]
    lost = [f"lost {-each} of a counter" for each in pairs if each < 0]
    return lost + [f"doubled {each - most} of a counter" for each in pairs if each > most]


def counted(
    attack: Attack, kind: Kind, consistency: str = "async", servers: int = SERVERS
) -> list[str]:
    """Have workers count while they and their servers are killed; return what is wrong."""
    with (
        attack.cluster(servers, WORKERS) as running,
        attack.on(Servers(running, servers), Workers(running, WORKERS)),
    ):
        found = running.run(count, attack.end, kind, consistency)
    return [fault for each in found for fault in each]

"""A table whose rows are evicted, compared with what the steps so far must leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

import stratagem
from benchmarks.kills.attack import WORKERS
from benchmarks.kills.counting import Counters
from stratagem import ParameterServerStrategy

_MAX_IDLE = 5
# Written by each step, so that its value is the number of steps.
_HOT = 0
# Each of these is written by two steps, and evicted long before its next turn.
_COLD = range(1, 12)
_TURN = 2


def evicting(strategy: ParameterServerStrategy, worker: int) -> Counters:
    """Rows of a table of each worker's own, on one server, which evicts idle ones."""
    with strategy.scope():
        tables = [_table() for _ in range(WORKERS)]
    weights = [table.weight for table in tables]
    optimizer = stratagem.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0))
    mine = tables[worker]

    def read() -> list[int]:
        values = _values(mine)
        steps = values.get(_HOT, 0)
        if values != left_by(steps):
            raise RuntimeError(f"after {steps} steps there are {values}, not {left_by(steps)}")
        return [steps]

    def step() -> None:
        optimizer.zero_grad()
        mine(torch.tensor(keys_of(number[0]))).sum().neg().backward()
        optimizer.step()
        number[0] += 1

    number = read()
    return Counters(lambda: strategy.run(step), read)


def _table() -> stratagem.nn.DynamicEmbedding:
    table = stratagem.nn.DynamicEmbedding(1, max_idle=_MAX_IDLE)
    torch.nn.init.zeros_(table.weight)
    return table


def _values(table: stratagem.nn.DynamicEmbedding) -> Mapping[int, int]:
    keys = torch.cat([*table.keys(), torch.zeros(0, dtype=torch.int64)])
    with torch.no_grad():
        values = table(keys).flatten()
    return {int(key): int(value) for key, value in zip(keys, values, strict=True)}


def keys_of(step: int) -> list[int]:
    """Return the keys that a step writes, from step 0 on."""
    return [_HOT, _COLD[step // _TURN % len(_COLD)]]


def left_by(steps: int) -> Mapping[int, int]:
    """Return the rows that so many steps leave.

    Only the last turns count: what earlier ones wrote was evicted.
    """
    values: Counter[int] = Counter()
    last: dict[int, int] = {}
    for step in range(max(0, steps - (len(_COLD) - 1) * _TURN), steps):
        for key in keys_of(step):
            values[key] += 1
            last[key] = step
    values[_HOT] = steps
    return {key: values[key] for key in last if steps - 1 - last[key] < _MAX_IDLE}

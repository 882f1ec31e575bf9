"""Which tasks go to which server; without the wire and clocks.

A server is as loaded as its tasks are heavy, and a task is as heavy as its part of all bytes and
its part of all calls together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

# A move has to lower the heavier of two loads by so much of the mean one to be worth it.
_WORTH = 0.05


@dataclass(frozen=True)
class TaskLoad:
    """What a task of the job ps needs of its server.

    Attributes:
        task: Its index.
        nbytes: Memory of its variables with the state of their optimizers, in bytes.
        calls_per_second: Calls that read or change its variables.
    """

    __module__ = "stratagem"

    task: int
    nbytes: int
    calls_per_second: float


@dataclass(frozen=True)
class TaskMove:
    """A task that goes from one server to another.

    Attributes:
        task: Its index.
        source: The number of the server that it leaves.
        target: The number of the server that it goes to.
    """

    __module__ = "stratagem"

    task: int
    source: int
    target: int


Weights: TypeAlias = Mapping[int, float]
"""How heavy tasks are, by index."""

Placement: TypeAlias = Mapping[int, int]
"""The number of the server of each task."""


def weights_of(loads: Iterable[TaskLoad]) -> Weights:
    """Return how heavy tasks are; all together weigh 2, or less if they do nothing."""
    known = [*loads]
    nbytes = sum(load.nbytes for load in known) or 1
    calls = sum(load.calls_per_second for load in known) or 1.0
    return {load.task: load.nbytes / nbytes + load.calls_per_second / calls for load in known}


def drained(
    placement: Placement, weights: Weights, server: int, targets: Sequence[int]
) -> list[TaskMove]:
    """Return the moves that leave a server without tasks, the heaviest task first.

    Args:
        placement: Where all tasks are.
        weights: How heavy they are; those that nobody has weighed are light.
        server: The server.
        targets: The servers that take its tasks; at least one.
    """
    loads = _loads(placement, weights, targets)
    moves = []
    leaving = [task for task, host in placement.items() if host == server]
    for task in sorted(leaving, key=lambda task: (-weights.get(task, 0.0), task)):
        target = min(targets, key=lambda each: (loads[each], each))
        loads[target] += weights.get(task, 0.0)
        moves.append(TaskMove(task, server, target))
    return moves


def balanced(placement: Placement, weights: Weights, servers: Sequence[int]) -> list[TaskMove]:
    """Return the moves that make the loads of servers as even as whole tasks allow.

    Args:
        placement: Where all tasks are; on these servers only.
        weights: How heavy they are.
        servers: The servers; at least one.
    """
    present = dict(placement)
    worth = _WORTH * sum(weights.values()) / len(servers)
    while (step := _step(present, weights, servers, worth)) is not None:
        task, target = step
        present[task] = target
    return [
        TaskMove(task, source, present[task])
        for task, source in sorted(placement.items())
        if present[task] != source
    ]


def _step(
    present: Placement, weights: Weights, servers: Sequence[int], worth: float
) -> tuple[int, int] | None:
    """Return the move from the heaviest server that has one which is worth it; None if none has."""
    loads = _loads(present, weights, servers)
    lightest = min(servers, key=lambda each: (loads[each], each))
    for source in sorted(servers, key=lambda each: (-loads[each], each)):
        # A server that has but one task with a load cannot give half of it away.
        after = {
            task: max(loads[source] - weights[task], loads[lightest] + weights[task])
            for task, host in sorted(present.items())
            if host == source and weights[task] > 0
        }
        best = min(after, key=lambda task: (after[task], task), default=None)
        # Of tiny weights, what is worth a move is rounded to nothing.
        if best is not None and loads[source] > after[best] <= loads[source] - worth:
            return best, lightest
    return None


def _loads(placement: Placement, weights: Weights, servers: Iterable[int]) -> dict[int, float]:
    loads = dict.fromkeys(servers, 0.0)
    for task, server in placement.items():
        if server in loads:
            loads[server] += weights.get(task, 0.0)
    return loads

"""Counters on several servers that a worker raises together, for tests of cuts."""

from __future__ import annotations

import threading

from stratagem import ParameterServerStrategy, Variable

SERVERS = 3


def counters(strategy: ParameterServerStrategy, workers: int) -> list[list[Variable]]:
    """One counter for each worker on each server."""
    with strategy.scope():
        return [
            [Variable(0.0, name=f"worker{w}_on{s}") for s in range(SERVERS)] for w in range(workers)
        ]


def count_until(
    over: threading.Event, strategy: ParameterServerStrategy, mine: list[Variable]
) -> int:
    """Takes steps that are three requests each; returns how many."""

    def step() -> None:
        for counter in mine:
            counter.assign_add(1.0)

    steps = 0
    while not over.is_set():
        strategy.run(step)
        steps += 1
    return steps

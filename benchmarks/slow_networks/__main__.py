"""`python -m benchmarks.slow_networks`: the time to a loss over cables that are slow.

Workers train a model of 11 million parameters to say the next byte of this repository's pages. Each
worker and each server is on a host of its own, behind a cable of that rate: all are network
namespaces, so root runs it. The last worker is three times as slow as the others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import fmean
from typing import Annotated, NamedTuple

import typer

from benchmarks.harness.machine import load, machine
from benchmarks.harness.namespace import missing
from benchmarks.harness.network import SUBNET
from benchmarks.harness.table import Table
from benchmarks.scaling.hosts import NEEDED, links
from benchmarks.scaling.worker import forking
from benchmarks.slow_networks.training import METHODS, PEER_SECONDS, Run, train

_SMOOTHED = 5
_PORT = 29500


class Found(NamedTuple):
    """How a method fared.

    Attributes:
        seconds: When the first worker had the loss; None if it had not in time.
        steps: How many steps it has taken until then, or the end.
        loss: Its loss then, as a mean of some steps.
    """

    seconds: float | None
    steps: int
    loss: float


def found(told: Iterator[tuple[float, float]], target: float) -> Found:
    """Return how the worker fared that tells seconds and losses."""
    losses: list[float] = []
    smoothed = float("inf")
    for seconds, loss in told:
        losses.append(loss)
        smoothed = fmean(losses[-_SMOOTHED:])
        if len(losses) >= _SMOOTHED and smoothed <= target:
            return Found(seconds, len(losses), smoothed)
    return Found(None, len(losses), smoothed)


def _told(worker: Connection, seconds: float) -> Iterator[tuple[float, float]]:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and worker.poll(left):
        try:
            yield worker.recv()
        except EOFError:
            return


def measure(method: str, workers: int, rate: float, seconds: float, target: float) -> Found:
    """Train by a method, on new servers."""
    context = forking()
    with links(workers, workers, rate) as hosts, ExitStack() as opened:
        # The host of the first worker is the one behind those of the servers.
        rendezvous = f"{SUBNET}.{len(hosts.addresses) + 1}:{_PORT}"
        connections = []
        for worker, network in enumerate(hosts.networks):
            mine, theirs = context.Pipe()
            run = Run(worker, network, hosts, method, rendezvous, seconds)
            process = context.Process(target=train, args=(theirs, run), daemon=True)
            process.start()
            theirs.close()
            opened.callback(process.join)
            opened.callback(process.kill)
            connections.append(mine)
        for each in connections:
            if not each.poll(PEER_SECONDS) or each.recv() != "ready":
                raise RuntimeError("a worker does not begin")
        for each in connections:
            each.send("go")
        return found(_told(connections[0], seconds), target)


def rows_of(fared: Mapping[str, Found]) -> Iterator[Sequence[str]]:
    """Yield a row for each method; the first one is what others are compared with."""
    first = next(iter(fared.values()))
    for method, one in fared.items():
        taken = "not in time" if one.seconds is None else f"{one.seconds:.0f} s"
        ratio = ""
        if first.seconds and one.seconds:
            ratio = f"{first.seconds / one.seconds:.1f}"
        yield method, taken, ratio, f"{one.steps}", f"{one.loss:.2f}"


def main(
    workers: Annotated[int, typer.Option(min=1, help="How many.")] = 4,
    rate: Annotated[float, typer.Option(help="Megabits a second of each cable.")] = 50,
    seconds: Annotated[float, typer.Option(help="For each method, at most.")] = 600,
    target: Annotated[float, typer.Option(help="The loss to come to.")] = 2.6,
    only: Annotated[list[str], typer.Option(help="Methods; all by default.")] = [],  # noqa: B006
) -> None:
    """Measure how soon methods come to a loss over slow cables."""
    if reason := missing(NEEDED):
        raise SystemExit(reason)
    before = load()
    fared: dict[str, Found] = {}
    for method in only or METHODS:
        fared[method] = measure(method, workers, rate * 1e6, seconds, target)
        print(method, fared[method], flush=True)
    print(f"\n{workers} workers, {rate:g} Mbit/s, to a loss of {target:g}\n")
    head = ["method", "time to the loss", "times as fast", "steps of a worker", "loss then"]
    print(Table(head, [*rows_of(fared)]).markdown())
    about = machine() | {"load before": before, "load after": load()}
    print(", ".join(f"{name} {value}" for name, value in about.items()))


if __name__ == "__main__":
    typer.run(main)

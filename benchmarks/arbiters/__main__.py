"""`python -m benchmarks.arbiters ARBITER…`: how long an arbiter takes, as --arbiter names it."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import typer

from benchmarks.harness.machine import load
from benchmarks.harness.table import Table
from stratagem_proto.v1.replication_pb2 import Replica, View
from stratagem_psserver.replication.registers import arbiter_of
from stratagem_psserver.settings import ServerSettings

# A view that is there stays: each run is a task of its own, whose number no cluster has.
_FIRST_TASK = 1 << 20


def main(
    arbiters: Annotated[list[str], typer.Argument(help="file:PATH, etcd:HOST:PORT/PREFIX, …")],
    count: Annotated[int, typer.Option(min=1, help="Times that each is asked.")] = 300,
) -> None:
    """Read and replace a view, one call after the other, and print how long a call takes."""
    columns = ["arbiter", "read, ms: median", "p99", "replace, ms: median", "p99", "load"]
    rows = []
    for arbiter in arbiters:
        reads, replaces = asyncio.run(_times(arbiter, count))
        figures = [*_described(reads), *_described(replaces)]
        rows.append([arbiter, *figures, f"{load():.1f}"])
    print(Table(columns, rows).markdown())


async def _times(name: str, count: int) -> tuple[list[float], list[float]]:
    task = _FIRST_TASK + secrets.randbelow(_FIRST_TASK)
    arbiter = arbiter_of(ServerSettings(task=task, replicas=2, arbiter=name))
    reads, replaces, present = [], [], await arbiter.read()
    for epoch in range(1, count + 1):
        following, began = _view(epoch), time.perf_counter()
        won = await arbiter.replace(present, following)
        replaced = time.perf_counter()
        present = await arbiter.read()
        reads.append(time.perf_counter() - replaced)
        replaces.append(replaced - began)
        if not won or present != following:
            raise RuntimeError(f"{name} did not take the view of epoch {epoch}")
    await arbiter.close()
    return reads, replaces


def _view(epoch: int) -> View:
    primary, backup = (
        Replica(index=(epoch + of) % 2, instance=bytes(16), address=f"ps-{of}:2222")
        for of in range(2)
    )
    return View(epoch=epoch, primary=primary, backup=backup)


def _described(times: Sequence[float]) -> list[str]:
    return [f"{value * 1e3:.1f}" for value in np.percentile(times, [50, 99])]


if __name__ == "__main__":
    typer.run(main)

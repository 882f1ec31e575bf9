"""`python -m benchmarks.kills`: kills processes, and counts what is lost or there twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from tqdm import tqdm

from benchmarks.harness.table import Table
from benchmarks.kills.attack import Attack
from benchmarks.kills.batches import batched
from benchmarks.kills.counting import counted, rows, update_functions, variables
from benchmarks.kills.eviction import evicting
from benchmarks.kills.lockstep import in_lockstep
from benchmarks.kills.versions import followed
from stratagem_rpc.channel import TRANSPORT_VARIABLE

PROGRAMS: Mapping[str, Callable[[Attack], list[str]]] = {
    "variables, async": partial(counted, kind=variables),
    "variables, bounded": partial(counted, kind=variables, consistency="bounded"),
    "update functions": partial(counted, kind=update_functions),
    "rows of a table": partial(counted, kind=rows),
    "eviction": partial(counted, kind=evicting, servers=1),
    "sync": in_lockstep,
    "coordinator": batched,
    "versions": followed,
}
_TRANSPORTS = ("auto", "tcp", "grpc", "unix")
_FOLDER = Path("runs/benchmarks")


def main(
    count: Annotated[int, typer.Option(min=1, help="Kills in all.")] = 60,
    each: Annotated[int, typer.Option(min=1, help="Kills of one run of a program.")] = 15,
    seed: Annotated[int, typer.Option(help="Of the first run; each has the next one.")] = 0,
    only: Annotated[str, typer.Option(help="Programs whose names have this.")] = "",
) -> None:
    """Kills servers, workers, coordinators and readers of programs in turn, by each transport.

    Exit code: 0 when nothing was lost or there twice; else 1.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    kills = {name: Counter[str]() for name in PROGRAMS if only in name}
    if not kills:
        raise typer.BadParameter(f"none of {', '.join(PROGRAMS)} has {only!r} in its name")
    faults: list[str] = []
    began, runs = time.monotonic(), 0
    with tqdm(total=count, unit="kill") as bar:
        while bar.n < count:
            name = [*kills][runs % len(kills)]
            transport = _TRANSPORTS[runs // len(kills) % len(_TRANSPORTS)]
            bar.set_description(f"{name}, {transport}")
            found, done = _attacked(name, transport, each, seed + runs)
            kills[name] += done + Counter(runs=1, faults=len(found))
            told = [f"seed {seed + runs}, {name}, {transport}: {fault}" for fault in found]
            # A run of hours need not end for that.
            bar.write("\n".join(told), end="\n" if told else "")
            faults += told
            bar.update(done.total())
            runs += 1
    print(_table(kills).markdown())
    print(f"{runs} runs in {time.monotonic() - began:.0f} s")
    if faults:
        raise SystemExit("\n".join(faults))


def _attacked(name: str, transport: str, count: int, seed: int) -> tuple[list[str], Counter[str]]:
    os.environ[TRANSPORT_VARIABLE] = transport
    with TemporaryDirectory(prefix="kills-", dir=_FOLDER) as folder:
        attack = Attack(Path(folder).resolve(), count, random.Random(seed))
        try:
            return PROGRAMS[name](attack), attack.done
        except Exception as error:
            return [f"{type(error).__name__}: {error}"], attack.done


def _table(kills: Mapping[str, Counter[str]]) -> Table:
    columns = {
        "runs": "runs",
        "ps": "servers killed",
        "worker": "workers killed",
        "coordinator": "coordinators killed",
        "reader server": "reader servers killed",
        "reader": "readers killed",
        "faults": "lost or doubled",
    }
    lines = [*kills.items(), ("all", sum(kills.values(), Counter()))]
    found = [[name, *(str(done[each]) for each in columns)] for name, done in lines]
    return Table(["", *columns.values()], found)


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

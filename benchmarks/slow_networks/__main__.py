"""`python -m benchmarks.slow_networks`: the time to a loss over cables that are slow.

Workers train a model of 11 million parameters to say the next byte of this repository's pages, the
last of them three times as slow as the others. `steps` takes few steps, each worker and each server
on a host of its own behind a cable: network namespaces, for root. `losses` takes many steps on this
host without cables, where losses by step are the same and come sooner. `table` multiplies both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import typer

from benchmarks.harness.machine import load, machine
from benchmarks.harness.namespace import missing
from benchmarks.harness.network import SUBNET
from benchmarks.harness.table import Table
from benchmarks.scaling.hosts import NEEDED, Hosts, links, loopback
from benchmarks.scaling.worker import forking
from benchmarks.slow_networks.training import (
    METHODS,
    PEER,
    PEER_SECONDS,
    SLOWER,
    Run,
    Taken,
    alone,
    train,
)

WORKERS, FOLDER = 4, Path("runs/slow_networks")
ONE = "one worker, as many samples"
_PORT, _PATIENCE_SECONDS, _MANY = 29500, 3600.0, 1_000_000
_SHARES = {1: 4, 10: 4, 50: 4, 200: 2}
_KEPT_EVERY = 50
app = typer.Typer(add_completion=False, help=__doc__)
Seconds = Mapping[str, Mapping[str, float]]


def _received(worker: Connection) -> Any:
    if not worker.poll(_PATIENCE_SECONDS):
        raise TimeoutError(f"a worker says nothing in {_PATIENCE_SECONDS:g} s")
    return worker.recv()


@contextmanager
def _training(hosts: Hosts, runs: Sequence[Run]) -> Iterator[Sequence[Connection]]:
    """Yield what workers that have begun are told and say."""
    context, connections = forking(), []
    with ExitStack() as opened:
        for run in runs:
            mine, theirs = context.Pipe()
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
        yield connections


def _steps_of(first: Connection) -> Iterator[Taken]:
    while isinstance(taken := _received(first), Taken):
        yield taken


def timed(method: str, rate: float, delay: float) -> Mapping[str, float]:
    """Return what a step of the first worker takes, in whole shares behind the first one."""
    every = METHODS[method].every
    with links(WORKERS, WORKERS, rate, delay) as hosts:
        # The host of the first worker is the one behind those of the servers.
        rendezvous = f"{SUBNET}.{len(hosts.addresses) + 1}:{_PORT}"
        steps = every * _SHARES[every]
        counts = [steps, *[_MANY] * (WORKERS - 1)]
        runs = [
            Run(one, hosts, method, rendezvous, count, planned=_MANY)
            for one, count in enumerate(counts)
        ]
        with _training(hosts, runs) as workers:
            told = [*_steps_of(workers[0])]
    ends, start = [one.seconds for one in told], told[every - 1]
    each = [after - before for before, after in pairwise(ends)]
    return {
        "seconds": (told[-1].seconds - start.seconds) / (steps - every),
        "nbytes": (told[-1].nbytes - start.nbytes) / (steps - every),
        "median": median(each),
        "load": load(),
    }


def curve(method: str, steps: int, seed: int) -> Mapping[int, float]:
    """Return losses by steps of the first worker, and of what all have come to in the end."""
    every = METHODS[method].every
    kept = [*range(max(every, _KEPT_EVERY), steps, max(every, _KEPT_EVERY))]
    # Over a slow network, updates of each step take all workers equally long.
    last = steps if every == 1 else steps // SLOWER
    with loopback(WORKERS, WORKERS) as hosts:
        counts = [*[steps] * (WORKERS - 1), last]
        runs = [
            Run(one, hosts, method, "", count, seed, kept if not one else ())
            for one, count in enumerate(counts)
        ]
        with _training(hosts, runs) as workers:
            for _ in _steps_of(workers[0]):
                pass
            for each in workers[1:]:
                assert _received(each) == "ended"
            workers[0].send("evaluate")
            losses: Mapping[int, float] = _received(workers[0])
    return losses


def curves_alone(steps: int, seed: int) -> Mapping[str, Mapping[int, float]]:
    """Return the losses of one process: of the mean of all workers' gradients, and of one worker.

    DistributedDataParallel and `sync` step by that mean. The one worker takes as many steps as all
    do by local steps.
    """
    context = forking()
    taken = (WORKERS - 1) * steps + steps // SLOWER
    orders = {PEER: (steps, WORKERS), ONE: (taken, 1)}
    with context.Pool(len(orders)) as pool:
        results = {
            name: pool.apply_async(alone, (count, batches, seed, _KEPT_EVERY))
            for name, (count, batches) in orders.items()
        }
        return {name: result.get(_PATIENCE_SECONDS) for name, result in results.items()}


def _noted(kind: str, found: Mapping[str, Any], under: str) -> None:
    """Add to a file of what was found, which `table` reads."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / f"{kind}.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known.setdefault(under, {}).update(found)
    file.write_text(json.dumps(known, indent=1))


Only = Annotated[list[str], typer.Option(help="Methods; all by default.")]


@app.command()
def steps(
    rate: Annotated[float, typer.Option(help="Megabits a second of each cable.")] = 50,
    delay: Annotated[float, typer.Option(help="Milliseconds from one host to another.")] = 0,
    only: Only = [],  # noqa: B006
) -> None:
    """Measure the seconds and bytes of a step behind cables."""
    if reason := missing(NEEDED):
        raise SystemExit(reason)
    for method in only or METHODS:
        found = timed(method, rate * 1e6, delay / 1e3)
        print(method, found, flush=True)
        _noted("steps", {method: found}, f"{rate:g} Mbit/s, {delay:g} ms")
    print(machine())


@app.command()
def losses(
    steps: Annotated[int, typer.Option(help="Of each worker.")] = 600,
    seeds: Annotated[list[int], typer.Option(help="One or several.")] = [0, 1, 2],  # noqa: B006
    only: Only = [],  # noqa: B006
) -> None:
    """Measure losses by step."""
    computed = [ONE, PEER]
    for seed in seeds:
        if not only or set(only) & set(computed):
            _noted("losses", curves_alone(steps, seed), f"{seed}")
        for method in only or METHODS:
            if method not in computed and method != "sync":
                began = time.monotonic()
                found = curve(method, steps, seed)
                _noted("losses", {method: found}, f"{seed}")
                print(seed, method, found, f"{time.monotonic() - began:.0f} s", flush=True)


def step_of(losses: Mapping[str, float], target: float) -> float | None:
    """Return after how many steps a loss is reached, in between of those that are known."""
    known = sorted((int(step), loss) for step, loss in losses.items())
    for (before, above), (after, below) in pairwise(known):
        if below <= target:
            part = (above - target) / (above - below) if above > target else 0
            return before + (after - before) * part
    return None


@app.command()
def table(
    target: Annotated[float, typer.Option(help="The loss to come to.")] = 2.6,
) -> None:
    """Print what was measured: the time to a loss is steps by seconds a step."""
    by_seed = json.loads((FOLDER / "losses.json").read_text())
    ends = {
        seed: found[ONE][max(found[ONE], key=int)]
        for seed, found in by_seed.items()
        if ONE in found
    }
    print("one worker:", {seed: round(end, 3) for seed, end in ends.items()})
    for network, timed in json.loads((FOLDER / "steps.json").read_text()).items():
        print(f"\n{network}, to a loss of {target:g}\n")
        head = ["method", "s a step", "median", "MB a step", "steps", "h", "times", "loss/one"]
        print(Table(head, [*_rows(timed, by_seed, ends, target)]).markdown())


def _rows(
    timed: Seconds, by_seed: Mapping[str, Any], ends: Mapping[str, float], target: float
) -> Iterator[Sequence[str]]:
    peers = 0.0
    for method, found in timed.items():
        name = PEER if method == "sync" else method
        curves = {seed: each[name] for seed, each in by_seed.items() if name in each}
        steps = [step_of(each, target) for each in curves.values()]
        taken = [one * found["seconds"] for one in steps if one is not None]
        ratios = [
            curves[seed][max(curves[seed], key=int)] / end
            for seed, end in ends.items()
            if seed in curves
        ]
        hours = fmean(taken) if taken and len(taken) == len(steps) else None
        if method == PEER and hours:
            peers = hours
        yield (
            method,
            f"{found['seconds']:.2f}",
            f"{found['median']:.2f}",
            f"{found['nbytes'] / 1e6:.2f}",
            ", ".join("never" if one is None else f"{one:.0f}" for one in steps),
            "" if hours is None else f"{hours / 3600:.2f}",
            "" if hours is None or not peers else f"{peers / hours:.1f}",
            ", ".join(f"{one:.3f}" for one in ratios),
        )


if __name__ == "__main__":
    app()

"""`python -m benchmarks.crowds --minutes 5`: 200 workers on 8 servers, and what becomes of them."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from tqdm import tqdm

from benchmarks.crowds import training
from benchmarks.crowds.samples import Sessions, drawn, fairness, memory
from benchmarks.crowds.training import Plan, Told
from benchmarks.endurance.samples import Samples
from benchmarks.harness.machine import load
from benchmarks.harness.table import Table
from benchmarks.stalls.scene import Watched
from stratagem_deploy import LocalCluster
from stratagem_deploy.watching.asking import ask

_FOLDER = Path("runs/benchmarks")
_SAMPLE_SECONDS = 2.0
_START_SECONDS = 600.0
# Of servers, which say at once how they are, on a machine that may be busy.
_STATUS_SECONDS = 10.0
# The last part of steps that slow machines have under way.
_ANSWER_SECONDS = 120.0

console = Console(stderr=True)


class Found(NamedTuple):
    """What became of a crowd.

    Attributes:
        samples: Memory of the servers.
        sessions: What servers said of the workers.
        steps: What each worker took in the time that was measured.
        seconds: That time.
        taken: All steps, before and after that, too.
        counted: The least and the greatest that the servers counted of them.
        failed: What ended workers.
    """

    samples: Samples
    sessions: Sessions
    steps: Sequence[int]
    seconds: float
    taken: int
    counted: Sequence[float]
    failed: Sequence[str]


class Processes:
    """Processes of the workers, which share them out.

    Args:
        cluster: The cluster.
        workers: How many workers there are.
        count: How many processes.
        plan: What each worker does.
    """

    def __init__(self, cluster: LocalCluster, workers: int, count: int, plan: Plan) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([training.__name__])
        self._connections: list[Connection] = []
        self._running = []
        for first in range(count):
            mine, theirs = context.Pipe()
            resolvers = [cluster.resolver("worker", each) for each in range(first, workers, count)]
            process = context.Process(
                target=training.serve, args=(theirs, resolvers, plan), daemon=True
            )
            process.start()
            theirs.close()
            self._connections.append(mine)
            self._running.append(process)

    def told(self, question: str = "told") -> Told:
        """Return what all say together."""
        for each in self._connections:
            each.send(question)
        answers: list[Told] = [_received(each) for each in self._connections]
        return Told(
            [steps for each in answers for steps in each.steps],
            [why for each in answers for why in each.failed],
        )

    def counted(self) -> Sequence[float]:
        """Return what the servers have counted."""
        self._connections[0].send("counted")
        found: Sequence[float] = _received(self._connections[0])
        return found

    def close(self) -> None:
        """End them."""
        for connection in self._connections:
            connection.close()
        for process in self._running:
            process.join()


def _received(process: Connection) -> Any:
    if not process.poll(_ANSWER_SECONDS):
        raise TimeoutError(f"a process of workers does not answer in {_ANSWER_SECONDS:g} s")
    return process.recv()


@contextmanager
def _running(cluster: LocalCluster, workers: int, count: int, plan: Plan) -> Iterator[Processes]:
    """Processes of which each worker has taken a step."""
    processes = Processes(cluster, workers, count, plan)
    try:
        began = time.monotonic()
        with tqdm(total=workers, desc="workers begin", unit="worker") as bar:
            while not all((told := processes.told()).steps):
                bar.update(sum(map(bool, told.steps)) - bar.n)
                if told.failed or time.monotonic() - began > _START_SECONDS:
                    raise TimeoutError(f"workers do not begin: {told}")
                time.sleep(1.0)
        console.print(f"all have begun after {time.monotonic() - began:.0f} s")
        yield processes
    finally:
        processes.close()


def observed(servers: int, workers: int, count: int, plan: Plan, seconds: float) -> Found:
    """Have workers train for a while."""
    samples, sessions = Samples(), Sessions()
    with LocalCluster(servers, workers, processes=True) as cluster:
        watched = Watched.of(cluster.cluster_resolver, "ps")
        pids = watched.pids()
        with _running(cluster, workers, count, plan) as processes:
            began, before = time.monotonic(), processes.told().steps
            with tqdm(total=round(seconds), unit="s") as bar:
                while (passed := time.monotonic() - began) < seconds:
                    bar.update(int(passed) - bar.n)
                    time.sleep(_SAMPLE_SECONDS)
                    samples.take(pids, {})
                    sessions.take(ask(watched.places, watched.token, _STATUS_SECONDS))
            after, seconds = processes.told().steps, time.monotonic() - began
            ended = processes.told("ended")
            steps = [then - now for then, now in zip(after, before, strict=True)]
            counted = processes.counted()
    return Found(samples, sessions, steps, seconds, sum(ended.steps), counted, ended.failed)


def main(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long they train.")] = 5.0,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 200,
    servers: Annotated[int, typer.Option(min=1, help="Number of servers.")] = 8,
    processes: Annotated[int, typer.Option(min=1, help="Of all workers together.")] = 8,
    computing: Annotated[float, typer.Option(min=0.0, help="Seconds that a step waits.")] = 4.0,
) -> None:
    """Train with many workers, each a strategy of its own in a thread of few processes.

    Computing is emulated by waiting. Each step adds 1 to a counter on every server and trains 64
    rows of a table.

    Exit code: 0 when no worker was lost, the servers counted each step once, and their memory is
    flat after the first fifth of the time; else 1.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    before = load()
    found = observed(servers, workers, processes, Plan(servers, computing), minutes * 60.0)
    drawn(found.samples, found.sessions, found.steps).savefig(_FOLDER / "crowds.svg")
    text = _text(found) + f"\nThe load was {before} before and {load()} after.\n"
    (_FOLDER / "crowds.md").write_text(text)
    print(text)
    if wrong := [*faults(found, workers)]:
        raise SystemExit("\n".join(wrong))


def _text(found: Found) -> str:
    rows = [
        [name, f"{early:.0f}", f"{late:.0f}", "yes" if flat else "no"]
        for name, early, late, flat in memory(found.samples)
    ]
    of_servers = Table(["MB of memory", "after the warm-up", "at the end", "flat"], rows)
    return "\n".join(["## crowds\n", _table(found).markdown(), of_servers.markdown()])


def _table(found: Found) -> Table:
    rate = sum(found.steps) / found.seconds
    silent = max(found.sessions.silent, default=0.0)
    rows = [
        ["seconds", f"{found.seconds:.0f}"],
        ["steps a second", f"{rate:.1f}"],
        ["slowest worker's steps over the fastest's", f"{fairness(found.steps):.3f}"],
        ["fewest sessions of workers that a server had", str(found.sessions.fewest)],
        ["longest silence of a worker, s", f"{silent:.1f}"],
        ["times that a server did not say so in 10 s", str(found.sessions.unanswered)],
        ["workers that a server took for dead", str(len(found.sessions.lost))],
        ["steps acknowledged, and counted", f"{found.taken}, {found.counted}"],
    ]
    return Table(["", ""], rows)


def faults(found: Found, workers: int) -> Iterator[str]:
    """Yield what is wrong."""
    yield from found.failed
    yield from (f"{who} was lost: {why}" for who, why in found.sessions.lost.items())
    if found.sessions.fewest < workers:
        yield f"a server had {found.sessions.fewest} sessions of {workers} workers"
    if {*found.counted} != {found.taken}:
        yield f"{found.taken} steps were acknowledged, and servers counted {found.counted}"
    yield from (
        f"the memory of {name} grows" for name, _, _, flat in memory(found.samples) if not flat
    )


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

"""`python -m benchmarks.moves`: what programs notice of servers that leave and join."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.losses import wait_until
from benchmarks.harness.table import Table
from benchmarks.moves.acts import Act, Acts
from benchmarks.moves.curve import WINDOW, Move, drawn, longest_pause, lowest_rate, rate
from benchmarks.moves.training import DIM, LAST_STEP, Plan, train
from stratagem_deploy import LocalCluster

TASKS, WORKERS = 4, 2

_FOLDER = Path("runs/benchmarks")
# Steps that workers take at least after the last move.
_MORE_STEPS = 50

console = Console(stderr=True)


def main(
    megabytes: Annotated[int, typer.Option(min=1, help="Size of the table.")] = 1000,
    consistency: Annotated[str, typer.Option(help="The mode of the strategy.")] = "async",
    pause: Annotated[float, typer.Option(min=0.0, help="Seconds between moves.")] = 10.0,
    bytes_per_second: Annotated[
        float | None, typer.Option(min=1, help="The pace of moves; by default there is none.")
    ] = None,
    computing: Annotated[
        float, typer.Option(min=0.0, help="Seconds that a step of a worker computes elsewhere.")
    ] = 0.0,
) -> None:
    """Train on 4 servers that become 2, 4 and 1, and draw the steps of each second.

    At first nothing moves for a while, which shows how steady the machine is.

    Exit code: 0 when each row of the table has the value that it should have; else 1.
    """
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="moves-", dir=_FOLDER) as name:
        rows = megabytes * 1_000_000 // (4 * DIM)
        plan = Plan(Path(name).resolve(), rows, TASKS, consistency, WORKERS, computing)
        moves, wrong = _observed(plan, pause, bytes_per_second)
        steps = sorted(moment for worker in range(WORKERS) for moment in plan.moments(worker))
    picture = _FOLDER / "moves.png"
    drawn(steps, moves).savefig(picture, dpi=150)
    print(_table(steps, moves).markdown())
    print(f"{len(steps)} steps, {wrong} rows with another value than they should have; {picture}")
    raise SystemExit(wrong > 0)


def _observed(
    plan: Plan, pause: float, bytes_per_second: float | None
) -> tuple[Sequence[Move], int]:
    with (
        LocalCluster(TASKS, WORKERS, processes=True, movable=True) as cluster,
        _training(cluster, plan) as wrong,
    ):
        acts = Acts(cluster, bytes_per_second)
        moves = []
        for act in acts.all():
            time.sleep(pause)
            moves.append(_timed(act))
        time.sleep(pause)
    return moves, sum(wrong.result())


def _timed(act: Act) -> Move:
    began = time.monotonic()
    tasks = act.carry_out()
    move = Move(act.name, began, time.monotonic(), tasks)
    console.print(f"{move.name}: {tasks} tasks in {move.seconds:.1f} s")
    return move


@contextmanager
def _training(cluster: LocalCluster, plan: Plan) -> Iterator[Future[list[int]]]:
    with ThreadPoolExecutor(1) as threads:
        wrong = threads.submit(cluster.run, train, plan)
        wait_until(lambda: wrong.done() or all(map(plan.moments, range(WORKERS))))
        try:
            yield wrong
        finally:
            taken = max(len(plan.moments(worker)) for worker in range(WORKERS))
            (plan.folder / LAST_STEP).write_text(str(taken + _MORE_STEPS))


def _table(steps: Sequence[float], moves: Sequence[Move]) -> Table:
    columns = ["", "tasks", "took, s", "steps/s before", "in the worst 5 s", "longest pause, s"]
    return Table(columns, [_row(steps, move) for move in moves])


def _row(steps: Sequence[float], move: Move) -> Sequence[str]:
    before, worst = rate(steps, move.began - WINDOW, move.began), lowest_rate(steps, move)
    return [
        move.name,
        str(move.tasks),
        f"{move.seconds:.1f}",
        f"{before:.0f}",
        f"{worst:.0f} ({worst / before:.2f})",
        f"{longest_pause(steps, move):.2f}",
    ]


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

"""`python -m benchmarks.successions`: how long workers wait when their coordinator is lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, TypeAlias

import typer
from tqdm import tqdm

from benchmarks.harness import coordinators
from benchmarks.harness.losses import QUANTILES, quantiles, wait_until
from benchmarks.harness.table import Table
from benchmarks.successions import program
from benchmarks.successions.program import BATCH, END, RESULT, ROWS
from stratagem_deploy import LocalCluster
from stratagem_deploy.processes.process import Process

_PATIENCE_SECONDS = 120.0

# Whoever stands by has asked for its turn by then.
_BEATS_BETWEEN = 30

Lose: TypeAlias = Callable[[Process], None]


def _kill(process: Process) -> None:
    process.send(signal.SIGKILL)


def _suspend(process: Process) -> None:
    os.kill(process.pid, signal.SIGSTOP)


ROUNDS: Mapping[str, Lose] = {
    "killed (SIGKILL)": _kill,
    "suspended (SIGSTOP), and continued afterwards": _suspend,
}


class Programs:
    """Two copies of a program, of which one coordinates.

    Args:
        cluster: Whose worker servers run its functions.
        folder: Where they tell what they do.
    """

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._resolver, self._folder = cluster.cluster_resolver, folder
        self._beats = program.beats(folder)
        self._beats.touch()
        self.processes: list[Process] = []
        # How many of those that were lost have ended by the error that names their successor.
        self.refused = 0

    def start(self) -> None:
        """Start one more, and wait until it stands by."""
        started = coordinators.started(program.__name__, self._folder, self._resolver)
        self.processes.append(started)
        wait_until((self._folder / f"standing-{started.pid}").exists)

    def lose(self, lose: Lose) -> float:
        """Lose the one that coordinates; return the seconds until a function ends of the other."""
        self._await_beats(_BEATS_BETWEEN)
        leader, other = self.processes
        began = time.monotonic()
        lose(leader)
        wait_until(lambda: self._last_process() == other.pid)
        moment = next(at for pid, at in self._told() if pid == other.pid)
        return moment - began

    def replace(self) -> None:
        """Have the lost one end, and start another one that stands by.

        Raises:
            TimeoutError: It goes on.
        """
        lost = self.processes.pop(0)
        with suppress(ProcessLookupError):
            os.kill(lost.pid, signal.SIGCONT)
        if not lost.wait(_PATIENCE_SECONDS):
            raise TimeoutError(f"a program that was superseded goes on:\n{lost.tail()}")
        self.refused += "SupersededError" in lost.tail()
        self.start()

    def finish(self) -> None:
        """Let the pass under way be the last one, and wait for its end.

        Raises:
            TimeoutError: It does not end.
        """
        (self._folder / END).touch()
        wait_until((self._folder / RESULT).exists)

    def end(self) -> None:
        """End all, whatever they do."""
        for process in self.processes:
            process.send(signal.SIGKILL)

    def _await_beats(self, count: int) -> None:
        present = len(self._told())
        wait_until(lambda: len(self._told()) >= present + count)

    def _last_process(self) -> int:
        told = self._told()
        return told[-1][0] if told else 0

    def _told(self) -> list[tuple[int, float]]:
        lines = self._beats.read_text().split("\n")[:-1]
        return [(int(pid), float(at)) for pid, at in (line.split() for line in lines)]


def main(
    count: Annotated[int, typer.Option(min=1, help="Losses of each kind.")] = 50,
    only: Annotated[str, typer.Option(help="The kind, as in the table.")] = "",
) -> None:
    """Lose coordinators, and measure the time until a function of the next one has ended.

    Exit code: 0 when each batch of all passes was counted once; else 1.
    """
    rows, faults = [], 0
    for name, lose in ROUNDS.items():
        if only in name:
            times, difference, refused = _lost(lose, count, name)
            faults += difference
            figures = [str(len(times)), *quantiles(times)]
            rows.append([name, *figures, str(difference), str(refused)])
    columns = ["the coordinator is", "times", *QUANTILES]
    print(Table([*columns, "rows lost or doubled", "refused by name"], rows).markdown())
    raise SystemExit(faults > 0)


def _lost(lose: Lose, count: int, name: str) -> tuple[list[float], int, int]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster(2, worker_servers=2, processes=True))
        programs = Programs(cluster, folder)
        stack.callback(programs.end)
        programs.start()
        programs.start()
        times = []
        for _ in tqdm(range(count), desc=name, unit="loss"):
            times.append(programs.lose(lose))
            programs.replace()
        programs.finish()
        return times, _difference((folder / RESULT).read_text()), programs.refused


def _difference(result: str) -> int:
    """Return how many rows or functions were counted too often, or not often enough."""
    passes, least, most, functions = map(int, result.split())
    return abs(functions - passes * ROWS // BATCH) + abs(most - passes) + abs(least - passes)


if __name__ == "__main__":
    # As from a terminal, so that no process is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    typer.run(main)

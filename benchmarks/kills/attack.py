"""A cluster whose processes are killed, one after the other, as soon as training goes on again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stratagem_deploy import LocalCluster

SERVERS = WORKERS = 2

# So much is logged within a few steps of any program.
_STEPS_BYTES = 4_000
_PATIENCE_SECONDS = 120.0
_LONGEST_PAUSE = 0.3


@dataclass
class Attack:
    """How often which processes are killed.

    Attributes:
        folder: Where servers keep their logs, and workers what was acknowledged.
        count: How many kills there are to be.
        chance: Draws victims and moments.
        report: Told of each kill.
        done: The kills so far, by the job of the victim.
    """

    folder: Path
    count: int
    chance: random.Random
    report: Callable[[], object] = lambda: None
    done: Counter[str] = field(default_factory=Counter)

    @property
    def end(self) -> Path:
        """A file that is there once there is nothing more to be killed."""
        return self.folder / "end"

    def cluster(self, workers: int = 0, worker_servers: int = 0) -> LocalCluster:
        """Return servers that keep a log, and other tasks."""
        return LocalCluster(
            ps=SERVERS,
            workers=workers,
            worker_servers=worker_servers,
            processes=True,
            durability="log",
            durability_folder=self.folder,
        )

    @contextmanager
    def on(self, running: LocalCluster, *victims: str) -> Iterator[None]:
        """Kill tasks beside the body, which goes on until there is `end`.

        Args:
            running: The cluster.
            victims: Some of "ps", "worker" and "worker server".

        Raises:
            Exception: A task could not be started again, or training did not go on.
        """
        failures: list[Exception] = []
        is_over = threading.Event()

        def kill() -> None:
            try:
                while self.done.total() < self.count:
                    self._await_steps(is_over)
                    if is_over.is_set():
                        return
                    self._strike(running, self.chance.choice(victims))
            except Exception as failure:
                failures.append(failure)
            finally:
                self.end.touch()

        thread = threading.Thread(target=kill, name="kills")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
        for failure in failures:
            raise failure

    def _strike(self, running: LocalCluster, victim: str) -> None:
        """Kill a task, or all of its kind, and start them again."""
        job = "ps" if victim == "ps" else "worker"
        time.sleep(self.chance.uniform(0.0, _LONGEST_PAUSE))
        tasks = range(SERVERS if job == "ps" else WORKERS)
        struck = [*tasks] if self.chance.random() < 1 / 2 else [self.chance.choice(tasks)]
        if victim != "worker":  # whose restart kills it
            for each in struck:
                running.kill(job, each)
        restarts = [threading.Thread(target=running.restart, args=(job, each)) for each in struck]
        for restart in restarts:
            restart.start()
        for restart in restarts:
            restart.join()
        self.done[job] += len(struck)
        self.report()

    def _await_steps(self, is_over: threading.Event) -> None:
        """Wait until servers have logged some steps."""
        enough, deadline = self._logged() + _STEPS_BYTES, time.monotonic() + _PATIENCE_SECONDS
        while self._logged() < enough and not is_over.wait(0.01):
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was logged for {_PATIENCE_SECONDS:g} s")

    def _logged(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("ps-*/segment-*.log"))

"""A cluster whose processes are killed, one after the other, as soon as training goes on again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.kills.victims import Victims
from stratagem_deploy import LocalCluster

SERVERS = WORKERS = 2

PATIENCE_SECONDS = 120.0
END = "end"
# So often the logs have changed when somebody looked, within some steps of any program.
_CHANGES = 10
_LONGEST_PAUSE = 0.3


@dataclass
class Attack:
    """How often which processes are killed.

    Attributes:
        folder: Where servers keep their logs, and workers what was acknowledged.
        count: How many kills there are to be.
        chance: Draws victims and moments.
        done: The kills so far, by the job of the victims.
    """

    folder: Path
    count: int
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)

    @property
    def end(self) -> Path:
        """A file that is there once there is nothing more to be killed."""
        return self.folder / END

    def cluster(
        self, servers: int = SERVERS, workers: int = 0, worker_servers: int = 0
    ) -> LocalCluster:
        """Return servers that keep a log, and other tasks."""
        return LocalCluster(
            ps=servers,
            workers=workers,
            worker_servers=worker_servers,
            processes=True,
            durability="log",
            durability_folder=self.folder,
        )

    def strike(self, *victims: Victims, is_over: threading.Event | None = None) -> None:
        """Kill processes until it is enough, or over; then make `end`.

        Raises:
            Exception: A process could not be started again, or training did not go on.
        """
        is_over = is_over or threading.Event()
        try:
            while self.done.total() < self.count:
                self._await_steps(is_over)
                if is_over.is_set():
                    return
                time.sleep(self.chance.uniform(0.0, _LONGEST_PAUSE))
                struck = self.chance.choice(victims)
                self.done[struck.job] += struck.strike(self.chance)
        finally:
            self.end.touch()

    @contextmanager
    def on(self, *victims: Victims) -> Iterator[None]:
        """Kill processes beside the body, which goes on until there is `end`.

        Raises:
            Exception: A process could not be started again, or training did not go on.
        """
        failures: list[Exception] = []
        is_over = threading.Event()

        def strike() -> None:
            try:
                self.strike(*victims, is_over=is_over)
            except Exception as failure:
                failures.append(failure)

        thread = threading.Thread(target=strike, name="kills")
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
        for failure in failures:
            raise failure

    def _await_steps(self, is_over: threading.Event) -> None:
        """Wait until servers have logged some steps."""
        seen, changes, deadline = self._written(), 0, time.monotonic() + PATIENCE_SECONDS
        while changes < _CHANGES and not is_over.wait(0.01):
            before, seen = seen, self._written()
            changes += seen != before
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was logged for {PATIENCE_SECONDS:g} s")

    def _written(self) -> int:
        """When something was written to a log for the last time."""
        logs = self.folder.glob("ps-*/segment-*.log")
        return max((path.stat().st_mtime_ns for path in logs), default=0)

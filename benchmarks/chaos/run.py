"""One training while something goes wrong all the time."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from benchmarks.chaos.account import Account, Outcome
from benchmarks.chaos.alone import error_alone
from benchmarks.chaos.cluster import Cluster
from benchmarks.chaos.faults import Fault, Faults
from benchmarks.chaos.kinds import kinds_of
from benchmarks.chaos.launcher import START_SECONDS
from benchmarks.chaos.verdict import wrong

# With all that goes wrong, a step is taken more often.
_STANDSTILL_SECONDS = 180.0
_POLL_SECONDS = 0.25
# A server says so of a backup whose bytes are others than its own.
_DIFFERS = "the backup differs"


class StandstillError(Exception):
    """A training does not go on."""


class Run:
    """A training of the demo, of which each process fails now and then.

    Args:
        folder: For its files.
        new_cluster: Makes the cluster, of what is called with each line of its logs.
        seconds: How long faults happen.
        every: Seconds between two of them; 0 for none at all.
        chance: Draws them.

    Attributes:
        account: The account of the training.
        happened: What went wrong.
        outcome: What became of it; None before its end.
        alone: The error of the same training by one process, likewise.
    """

    def __init__(
        self,
        folder: Path,
        new_cluster: Callable[[Callable[[str], None]], Cluster],
        seconds: float,
        every: float,
        chance: random.Random,
    ) -> None:
        self.account = Account(folder, seconds)
        self.happened: Sequence[Fault] = ()
        self.outcome: Outcome | None = None
        self.alone = 0.0
        self._seconds, self._every, self._chance = seconds, every, chance
        self._differences: list[str] = []
        self._cluster = new_cluster(self._read)

    def _read(self, line: str) -> None:
        if _DIFFERS in line:
            self._differences.append(line)

    def verdict(self) -> list[str]:
        """Train, and return what is wrong.

        Raises:
            StandstillError: The training does not go on, or a process has ended by itself.
            StratagemError: A process does not start.
        """
        cluster, account = self._cluster, self.account
        account.plan()
        with cluster.running():
            self._await(lambda: account.taken() > 0, START_SECONDS)
            account.begin()
            with self._failing():
                self._train()
            account.finish()
            self._await(lambda: cluster.coordinator.has_ended, START_SECONDS)
            self.outcome = account.outcome()
            found = [*self._differences, *cluster.servers.wrong()]
            versions = cluster.servers.versions()
            if missing := cluster.missing:
                found.append(f"{', '.join(missing)} ended without being killed")
        self.alone = error_alone(account.rates())
        # A variable is created with its first version.
        updates = {name: version - 1 for name, version in versions.items()}
        return found + wrong(self.outcome, self.alone, updates)

    def _train(self) -> None:
        """Let the time pass while there are steps.

        Raises:
            StandstillError: There are none.
        """
        began = grown = time.monotonic()
        steps = self.account.taken()
        with tqdm(total=round(self._seconds), unit="s", desc="chaos") as bar:
            while (elapsed := time.monotonic() - began) < self._seconds:
                if steps != self.account.taken():
                    steps, grown = self.account.taken(), time.monotonic()
                self._require_going_on(grown + _STANDSTILL_SECONDS)
                bar.update(round(elapsed) - bar.n)
                time.sleep(_POLL_SECONDS)

    def _await(self, holds: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            self._require_going_on(deadline)
            time.sleep(_POLL_SECONDS)

    def _require_going_on(self, deadline: float) -> None:
        if failure := self._cluster.coordinator.failure:
            raise StandstillError(failure)
        if time.monotonic() > deadline:
            raise StandstillError("nothing was trained for too long")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Let something go wrong again and again until the end of the block."""
        if not self._every:
            yield
            return
        kinds = kinds_of(self._cluster, self.account.taken)
        faults = Faults(kinds, self._chance, self._every, self.account.taken)
        self.happened = faults.happened
        failures: list[Exception] = []
        thread = threading.Thread(target=_run, args=(faults, failures), name="chaos")
        thread.start()
        try:
            yield
        finally:
            faults.end()
            thread.join()
        for failure in failures:
            raise StandstillError(str(failure)) from failure


def _run(faults: Faults, failures: list[Exception]) -> None:
    try:
        faults.run()
    except Exception as failure:
        failures.append(failure)

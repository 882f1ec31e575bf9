"""Where the functions of a coordinator stand, for people who look for what they wait for."""

from __future__ import annotations

import time
from collections.abc import Sequence

from stratagem._coordinator.closure_runs import ClosureRuns
from stratagem._coordinator.queue.closure_queue import ClosureQueue
from stratagem._coordinator.workers.roster import Roster
from stratagem._core.waiting import AwaitedTask


class QueueReport:
    """Describes a coordinator's queue and workers. Used under the lock; its text is the whole."""

    def __init__(self, queue: ClosureQueue, roster: Roster, runs: ClosureRuns) -> None:
        self._queue, self._roster, self._runs = queue, roster, runs

    def __str__(self) -> str:
        lines = map(self.of_worker, self._roster.indices)
        return f"{self._queue.queued} functions wait; " + "; ".join(lines)

    def of_worker(self, index: int) -> str:
        """Return what a worker has, the function first that it runs."""
        names = self._names(index)
        if index not in self._roster.there:
            return f"{_task(index)} is not there and has {', '.join(names) or 'none'}"
        if names:
            names[0] += f" ({self._seconds(index):.1f} s)"
        return f"{_task(index)} has {', '.join(names) or 'none'}"

    def missing(self) -> Sequence[AwaitedTask]:
        """Return what workers have to do before functions can end that have not."""
        return [self._missing_of(index) for index in self._roster.indices if self._holds_up(index)]

    def _holds_up(self, index: int) -> bool:
        return index not in self._roster.there or bool(self._queue.closures_of(index))

    def _missing_of(self, index: int) -> AwaitedTask:
        if index not in self._roster.there:
            return AwaitedTask(_task(index), "server")
        first, *others = self._names(index)
        more = f" and {len(others)} more" if others else ""
        return AwaitedTask(_task(index), f"end of {first!r}{more}", self._seconds(index))

    def _names(self, index: int) -> list[str]:
        return [self._runs[one].name for one in self._queue.closures_of(index)]

    def _seconds(self, index: int) -> float:
        return time.monotonic() - self._roster.there[index].busy_since


def _task(index: int) -> str:
    return f"/job:worker/task:{index}"

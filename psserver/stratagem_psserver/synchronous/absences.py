"""For how long others have waited for workers that were lost. Time is an argument."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Absences:
    """When each absence was noticed.

    That a worker is not waited for any more is part of the state of its groups, and in the log.
    Only when that is to be is decided here. A server that goes on with the state of another process
    gives each worker the whole time again, since nobody could come back meanwhile.

    Args:
        seconds: For how long others wait; 0 if they do not.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._noticed: dict[str, float] = {}

    def overdue(self, absent: Iterable[str], now: float) -> Sequence[str]:
        """Return the tasks that have been away for longer than others wait.

        Args:
            absent: All tasks that are waited for although they are away.
            now: The time.
        """
        self._noticed = {task: self._noticed.get(task, now) for task in absent}
        return [task for task, since in self._noticed.items() if now - since >= self._seconds]

"""Which processes are started again because nothing was lost with them, and when. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0

# What has run for so long does not fail at its start.
_SOUND_SECONDS = 60.0


class ReplicaRestarts:
    """Restarts of replicas, whose task goes on without them meanwhile.

    A replica is started again however often it ends, since the others have its state. The sooner it
    ends again, the longer the next start waits.

    Args:
        tasks: The task of each replica, by its name; more may come.
        needs_no_other: Returns whether one may be started again even if no other one of its task
            runs.
    """

    def __init__(
        self,
        tasks: Mapping[str, str],
        needs_no_other: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self._tasks, self._needs_no_other = tasks, needs_no_other
        self._due: dict[str, float] = {}
        # When a replica was started again last, and how often it was soon after another time.
        self._started: dict[str, float] = {}
        self._quick: dict[str, int] = {}

    @property
    def next_due(self) -> float:
        """When the next replica is to be started; infinity if none is."""
        return min(self._due.values(), default=math.inf)

    @property
    def waiting(self) -> Collection[str]:
        """The replicas that are to be started."""
        return self._due.keys()

    def grant(self, name: str, now: float) -> bool:
        """Return whether a process is started again; if so, it is due then.

        Args:
            name: Its name; what is no replica is not started from here.
            now: Seconds of a monotonic clock.
        """
        task = self._tasks.get(name)
        if task is None or not (self._has_others(name, task) or self._needs_no_other(name)):
            return False
        is_quick = now - self._started.get(name, -math.inf) < _SOUND_SECONDS
        self._quick[name] = self._quick.get(name, 0) + 1 if is_quick else 0
        self._due[name] = now + min(_FIRST_SECONDS * 2 ** self._quick[name], _LONGEST_SECONDS)
        return True

    def _has_others(self, name: str, task: str) -> bool:
        others = {one for one, its in self._tasks.items() if its == task} - {name}
        return not others <= self._due.keys()

    def take_due(self, now: float) -> list[str]:
        """Return the replicas to start now, each once."""
        due = [name for name, moment in self._due.items() if moment <= now]
        for name in due:
            del self._due[name]
            self._started[name] = now
        return due

    def abandon(self) -> list[str]:
        """Return what waits for its start, and start nothing any more."""
        waiting = list(self._due)
        self._due.clear()
        self._tasks = {}
        return waiting

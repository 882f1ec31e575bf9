"""How often, and when, processes that failed are started again."""

from __future__ import annotations

import math

# What argparse, click and Python itself end with when arguments cannot be: the same
# arguments cannot be the next time either.
_USAGE_ERROR = 2

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 30.0


class Restarts:
    """A number of restarts, which all processes share, each later than the one before.

    Args:
        most: How many.

    Attributes:
        granted: How many of them are used up.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._due: dict[str, float] = {}
        self.granted = 0

    @property
    def next_due(self) -> float:
        """When the next process is to be started; infinity if none is."""
        return min(self._due.values(), default=math.inf)

    def grant(self, name: str, code: int, now: float) -> bool:
        """Says whether a process is started again; if so, sees to it that it is due.

        Args:
            name: Its name.
            code: How it ended, as `Popen.returncode`.
            now: Seconds of a monotonic clock.
        """
        if code in (0, _USAGE_ERROR) or self.granted == self._most:
            return False
        delay = min(_FIRST_SECONDS * 2**self.granted, _LONGEST_SECONDS)
        self._due[name] = now + delay
        self.granted += 1
        return True

    def take_due(self, now: float) -> list[str]:
        """Returns whom to start now, each once."""
        due = [name for name, moment in self._due.items() if moment <= now]
        for name in due:
            del self._due[name]
        return due

    def abandon(self) -> list[str]:
        """Returns who waits for its start, and grants no more."""
        waiting = list(self._due)
        self._due.clear()
        self._most = self.granted
        return waiting

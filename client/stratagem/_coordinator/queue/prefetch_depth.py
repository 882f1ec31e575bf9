"""How many closures a worker should have at a time."""

from __future__ import annotations

SHALLOWEST = 2
"""One to run, and the next, for which it need not wait then."""

DEEPEST = 64
"""32 instead of 2 let one worker end 4,400 empty closures a second instead of 430: they travel
together, and so do their results."""

_SECONDS = 0.02
"""Work that a worker should have, several times the round trip to it."""

_SHARE = 1 / 8
"""Weight of the last closure in the mean."""


class PrefetchDepth:
    """Tells from the time that closures take how many of them a worker should have.

    Short closures hide the round trip only if there are many. Of long ones, no worker should have
    some that another could run.

    Attributes:
        depth: How many it should have.
    """

    def __init__(self) -> None:
        self.depth = SHALLOWEST
        self._seconds = _SECONDS
        self._given = 0
        self._since = 0.0

    def gave(self, now: float) -> None:
        """Take note that the worker was given a closure.

        Args:
            now: The time in seconds.
        """
        if not self._given:
            self._since = now
        self._given += 1

    def ended(self, now: float) -> None:
        """Take note that one of its closures has ended."""
        self._given -= 1
        # Results that come together count as one that took long and some that took no time.
        self._seconds += _SHARE * (now - self._since - self._seconds)
        self._since = now
        fitting = _SECONDS / max(self._seconds, _SECONDS / DEEPEST)
        self.depth = max(int(fitting), SHALLOWEST)

"""Workers that were lost and may be started again. Time is an argument."""

from __future__ import annotations


class Absences:
    """Until when others wait for workers that were lost.

    Args:
        seconds: For how long they wait; 0 if they do not.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}

    def lost(self, task: str, now: float) -> None:
        """Note that a worker was lost, which may come back."""
        if self._seconds:
            self._until[task] = now + self._seconds

    def ended(self, task: str) -> None:
        """Note that a worker is there again, or does not come back."""
        self._until.pop(task, None)

    def awaits(self, task: str) -> bool:
        """Return whether others still wait for a worker."""
        return task in self._until

    def give_up(self, now: float) -> bool:
        """Wait no more for those whose time is over; return whether there are any."""
        late = [task for task, until in self._until.items() if until <= now]
        for task in late:
            del self._until[task]
        return bool(late)

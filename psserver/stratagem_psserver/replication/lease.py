"""How long a primary may answer without having heard of its backup."""

from __future__ import annotations

from collections import deque


class Lease:
    """The lease that a backup gives its primary by acknowledging beacons.

    It is counted from when a beacon was sent, and the backup waits for longer from when it has
    received the beacon. So it is over before the backup takes over, if the clocks of the two run
    about equally fast; they need not agree.

    Args:
        seconds: How long it lasts.
        began: When the backup has come; before its first answer there is no lease.
    """

    def __init__(self, seconds: float, began: float) -> None:
        self._seconds = seconds
        self._number = 0
        # Beacons that are not acknowledged, and when they were sent.
        self._sent: deque[tuple[int, float]] = deque()
        self._until = began

    def may_send(self, now: float) -> bool:
        """Return whether to send a beacon.

        A primary that hears nothing from its backup may be heard by it all the same. It cannot
        answer then, and by further beacons would keep the backup from taking over.
        """
        return self.is_valid(now) or not self._sent

    def send(self, now: float) -> int:
        """Return the number of a beacon that is sent now."""
        self._number += 1
        self._sent.append((self._number, now))
        return self._number

    def acknowledge(self, number: int) -> None:
        """Note that the backup has received a beacon, and so those before."""
        while self._sent and self._sent[0][0] <= number:
            self._until = self._sent.popleft()[1] + self._seconds

    def is_valid(self, now: float) -> bool:
        """Return whether the primary may answer now."""
        return now < self._until

    def was_heard_since(self, moment: float) -> bool:
        """Return whether a beacon came back that was sent at a moment or later."""
        return self._until >= moment + self._seconds

    def silence(self, now: float) -> float:
        """Return the seconds since the last beacon was sent that came back."""
        return max(now - self._until + self._seconds, 0.0)

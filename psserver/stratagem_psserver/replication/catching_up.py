"""When a backup has caught up that applies what came while it loaded an image."""

from __future__ import annotations

# So few records to apply are no reason to go on.
_FEW = 16


class CatchingUp:
    """Applies in rounds what has come by the begin of each, as long as rounds become shorter.

    Whoever takes over has to apply first what is left, and clients wait. Where records come as fast
    as they are applied, however, nothing is gained by another round.

    Attributes:
        is_over: Whether little is left, or the last round left more than half of the one before.
        has_time: Whether the first round may be slow: less than a quarter of it has come meanwhile.
    """

    def __init__(self) -> None:
        self.is_over, self.has_time = False, False
        # The records of the present round, and those that are still to be applied.
        self._round = self._left = 0

    def begin(self, waiting: int) -> None:
        """Begin a round with all records that wait, unless it is over."""
        before, self._round, self._left = self._round, waiting, waiting
        self.is_over = waiting <= _FEW or 0 < before < 2 * waiting
        self.has_time = not (before or self.is_over)

    def note_applied(self, waiting: int) -> None:
        """Note that a record was applied, behind which others wait."""
        self._left -= 1
        self.has_time &= 4 * (waiting - self._left) < self._round
        if not self.is_over and self._left <= 0:
            self.begin(waiting)

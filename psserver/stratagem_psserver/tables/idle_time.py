"""The time for which rows of a table were idle, without a time for each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stratagem_proto.v1.checkpoint_pb2 import TableHistory, TableMoment

# The part of the limit from one moment to the next.
_SHARE = 8


class _Moment(NamedTuple):
    milliseconds: int
    writes: int


@dataclass(frozen=True)
class IdleTime:
    """How many requests had written a table at some moments of its life.

    A row that was written last by one of the first `n` requests is idle since the moment at which
    there were so many. So a row needs no time besides the number of its last write, and whoever
    repeats the writes and the passages of time between them finds the same rows idle.

    Attributes:
        limit: For how long a row may be idle, in milliseconds; 0 for ever.
        now: The time that has passed for the table, in milliseconds.
        moments: Earlier moments, ascending: all after the limit, and the last one before.
    """

    limit: int = 0
    now: int = 0
    moments: tuple[_Moment, ...] = ()

    @property
    def interval(self) -> int:
        """The time from one moment to the next, in milliseconds."""
        return max(1, self.limit // _SHARE)

    def after(self, milliseconds: int, writes: int) -> IdleTime:
        """Return what there is once time has passed.

        Args:
            milliseconds: The time since the last such call.
            writes: How many requests have written the table.
        """
        now = self.now + milliseconds
        moments = self.moments
        if not moments or now - moments[-1].milliseconds >= self.interval:
            moments = (*moments, _Moment(now, writes))
        past = [moment for moment in moments if now - moment.milliseconds >= self.limit]
        return IdleTime(self.limit, now, moments[max(0, len(past) - 1) :])

    @property
    def idle_since(self) -> int:
        """The number of the last write of a row that is idle for the limit now; -1 for none."""
        first = self.moments[0] if self.moments else _Moment(self.now, 0)
        return first.writes if self.now - first.milliseconds >= self.limit else -1

    def describe(self, history: TableHistory) -> None:
        """Write it into the history of a table."""
        history.milliseconds = self.now
        history.moments.extend(TableMoment(milliseconds=m, writes=w) for m, w in self.moments)

    def restored(self, history: TableHistory) -> IdleTime:
        """Return that of a history, with this limit."""
        moments: Iterable[TableMoment] = history.moments if self.limit else ()
        each = tuple(_Moment(one.milliseconds, one.writes) for one in moments)
        return IdleTime(self.limit, history.milliseconds, each)

"""Ends of functions that are reported once their writes are applied."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stratagem._ps_client.write_behind import WritesBehind
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_worker.functions.closure import write_failed
from stratagem_worker.sessions.watch import Watch

# So many functions run ahead of their writes. More spare little, and a checkpoint that
# is asked for waits for them.
_MOST_AHEAD = 16

# A function that ends later than this after an unreported one waits for its writes. If
# none ends in twice that time, another thread does soon, and who waits for a function
# whose successor takes its time has waited so much longer.
_LINGER_SECONDS = 0.01


class End(NamedTuple):
    """How a function has ended.

    Attributes:
        finished: The end, if its writes do not fail.
        began: When it began, in seconds of a monotonic clock.
        ended: When it ended.
        writes: Those that it has not waited for.
    """

    finished: pb.Finished
    began: float
    ended: float
    writes: WritesBehind


class UnreportedEnds:
    """Ends of the functions of one session, in order. Made on the event loop.

    Args:
        watch: Looks whether they linger for too long.
        report: Called from any thread with each end, the seconds that the function
            ran, and whether nothing follows that it could be told with.
    """

    def __init__(
        self, watch: Watch, report: Callable[[pb.Finished, float, bool], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._report = report
        self._ends: deque[End] = deque()
        self._reporting = threading.Lock()
        watch.over(self._look)

    def add(self, end: End, more_follow: bool) -> None:
        """Takes an end in; in the thread that runs functions.

        Args:
            end: The end.
            more_follow: Whether there is something to run next.
        """
        if not self._ends and end.writes.settled:
            return self._tell(end, at_once=not more_follow)
        self._ends.append(end)
        many = len(self._ends) >= _MOST_AHEAD
        if not more_follow or many or self._linger_since(end.ended - _LINGER_SECONDS):
            self._report_all(at_once=not more_follow)
        else:
            self._watch.ask()

    def _report_all(self, at_once: bool) -> None:
        """Reports all, each as soon as its writes are applied."""
        with self._reporting:
            while self._ends:
                end = self._ends[0]
                end.writes.settle()
                self._ends.popleft()
                self._tell(end, at_once and not self._ends)

    def _linger_since(self, moment: float) -> bool:
        try:
            return self._ends[0].ended < moment
        except IndexError:
            return False  # another thread has just reported all

    def _tell(self, end: End, at_once: bool) -> None:
        self._report(_outcome(end), end.ended - end.began, at_once)

    def _look(self, now: float) -> bool:
        if self._linger_since(now - 2 * _LINGER_SECONDS):
            self._loop.run_in_executor(None, self._report_all, True)
            return False
        return bool(self._ends)


def _outcome(end: End) -> pb.Finished:
    write = end.writes.failed
    if write is None or end.finished.HasField("failure"):
        return end.finished
    return write_failed(end.finished.closure, write)

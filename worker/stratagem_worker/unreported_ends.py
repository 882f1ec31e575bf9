"""Ends of functions that are reported once their writes are applied."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from stratagem._servers.write_behind import WritesBehind
from stratagem_proto.v1 import worker_pb2 as pb
from stratagem_worker.closure import write_failed

# So many functions run ahead of their writes. More spare little, and a checkpoint that
# is asked for waits for them.
_MOST_AHEAD = 16

# A function that ends later than this after an unreported one waits for its writes. If
# none ends in twice that time, another thread does, and who waits for a function whose
# successor takes its time has waited so much longer.
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

    @property
    def is_overdue(self) -> bool:
        """Whether it should be reported by now."""
        return time.monotonic() - self.ended > _LINGER_SECONDS


class UnreportedEnds:
    """Ends of the functions of one session, in order. Made on the event loop.

    Args:
        report: Called from any thread with each end, the seconds that the function
            ran, and whether nothing follows that it could be told with.
    """

    def __init__(self, report: Callable[[pb.Finished, float, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._report = report
        self._ends: deque[End] = deque()
        self._settling = threading.Lock()
        self._watched = False

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
        if not more_follow or many or self._is_overdue():
            self._settle(at_once=not more_follow)
        else:
            self._watch()

    def _settle(self, at_once: bool) -> None:
        """Reports all, each as soon as its writes are applied."""
        with self._settling:
            while self._ends:
                end = self._ends[0]
                end.writes.settle()
                self._ends.popleft()
                self._tell(end, at_once and not self._ends)

    def _is_overdue(self) -> bool:
        try:
            return self._ends[0].is_overdue
        except IndexError:
            return False  # another thread has just reported all

    def _tell(self, end: End, at_once: bool) -> None:
        self._report(_outcome(end), end.ended - end.began, at_once)

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            # A function may end when its worker has stopped already.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wait)

    def _wait(self) -> None:
        self._loop.call_later(2 * _LINGER_SECONDS, self._look)

    def _look(self) -> None:
        self._watched = False
        if self._is_overdue():
            self._loop.run_in_executor(None, self._settle, True)
        elif self._ends:
            self._watch()


def _outcome(end: End) -> pb.Finished:
    write = end.writes.failed
    if write is None or end.finished.HasField("failure"):
        return end.finished
    return write_failed(end.finished.closure, write)

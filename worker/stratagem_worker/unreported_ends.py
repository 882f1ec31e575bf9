"""Ends of functions that are reported once their writes are applied."""

from __future__ import annotations

import asyncio
import threading
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

# Who waits for a function waits so much longer if the next one takes its time.
_LINGER_SECONDS = 0.005


class End(NamedTuple):
    """How a function has ended.

    Attributes:
        finished: The end, if its writes do not fail.
        seconds: How long it ran.
        writes: Those that it has not waited for.
    """

    finished: pb.Finished
    seconds: float
    writes: WritesBehind


class UnreportedEnds:
    """Ends of the functions of one session, in order. Made on the event loop.

    Args:
        report: Called with each end and the seconds that it took to come, from any
            thread.
    """

    def __init__(self, report: Callable[[pb.Finished, float], None]) -> None:
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
            return self._report(end.finished, end.seconds)
        self._ends.append(end)
        if not more_follow or len(self._ends) >= _MOST_AHEAD:
            self.settle()
        else:
            self._watch()

    def settle(self) -> None:
        """Reports all, each as soon as its writes are applied."""
        with self._settling:
            while self._ends:
                end = self._ends[0]
                end.writes.settle()
                self._report(_outcome(end), end.seconds)
                self._ends.popleft()

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            # A function may end when its worker has stopped already.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wait)

    def _wait(self) -> None:
        self._loop.call_later(_LINGER_SECONDS, self._look)

    def _look(self) -> None:
        self._watched = False
        if self._ends:
            self._loop.run_in_executor(None, self.settle)


def _outcome(end: End) -> pb.Finished:
    write = end.writes.failed
    if write is None or write.error is None or end.finished.HasField("failure"):
        return end.finished
    return write_failed(end.finished.closure, write, write.error)

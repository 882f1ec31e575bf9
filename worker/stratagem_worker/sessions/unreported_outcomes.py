"""Outcomes of functions, which are reported once their writes are applied."""

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

# So many functions run ahead of their writes. More spare little, and a checkpoint that is asked for
# waits for them.
_MOST_AHEAD = 16

# A function that ends later than this after an unreported one waits for its writes. If none ends in
# twice that time, another thread waits for them soon: a program that awaits a function whose
# successor takes its time has waited so much longer.
_LINGER_SECONDS = 0.01


class FunctionOutcome(NamedTuple):
    """The outcome of a function that has ended.

    Attributes:
        finished: The message that reports it, if no write of the function fails.
        began: When the function began, in seconds of a monotonic clock.
        ended: When the function ended.
        writes: The writes that the function has not waited for.
    """

    finished: pb.Finished
    began: float
    ended: float
    writes: WritesBehind


class UnreportedOutcomes:
    """Outcomes of the functions of one session, in order. Made on the event loop.

    Args:
        watch: Looks whether they linger for too long.
        report: Called from any thread with each message, the seconds that the function ran, and
            whether nothing follows that it could be told with.
    """

    def __init__(self, watch: Watch, report: Callable[[pb.Finished, float, bool], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch
        self._report = report
        self._outcomes: deque[FunctionOutcome] = deque()
        self._reporting = threading.Lock()
        watch.over(self._look)

    def add(self, outcome: FunctionOutcome, more_follow: bool) -> None:
        """Add an outcome, in the thread that runs functions; `more_follow` if there are others."""
        if not self._outcomes and outcome.writes.has_outcome:
            return self._tell(outcome, at_once=not more_follow)
        self._outcomes.append(outcome)
        many = len(self._outcomes) >= _MOST_AHEAD
        lingers = self._linger_since(outcome.ended - _LINGER_SECONDS)
        if not more_follow or many or lingers:
            self._report_all(at_once=not more_follow)
        else:
            self._watch.ask()

    def _report_all(self, at_once: bool) -> None:
        """Report all outcomes, each as soon as its writes are applied."""
        with self._reporting:
            while self._outcomes:
                outcome = self._outcomes[0]
                outcome.writes.wait()
                self._outcomes.popleft()
                self._tell(outcome, at_once and not self._outcomes)

    def _linger_since(self, moment: float) -> bool:
        try:
            return self._outcomes[0].ended < moment
        except IndexError:
            return False  # another thread has just reported all

    def _tell(self, outcome: FunctionOutcome, at_once: bool) -> None:
        seconds = outcome.ended - outcome.began
        self._report(_message_of(outcome), seconds, at_once)

    def _look(self, now: float) -> bool:
        if self._linger_since(now - 2 * _LINGER_SECONDS):
            self._loop.run_in_executor(None, self._report_all, True)
            return False
        return bool(self._outcomes)


def _message_of(outcome: FunctionOutcome) -> pb.Finished:
    write = outcome.writes.failed
    if write is None or outcome.finished.HasField("failure"):
        return outcome.finished
    return write_failed(outcome.finished.closure, write)

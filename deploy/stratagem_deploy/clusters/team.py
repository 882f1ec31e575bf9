"""The workers of a cluster, which all call one function."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from stratagem_deploy.clusters.call import Outcome, WorkerCall
from stratagem_deploy.clusters.workers import Worker
from stratagem_proto.errors import FailedPreconditionError

_GRACE_SECONDS = 2.0
_GLANCE_SECONDS = 0.05

_Outcomes = SimpleQueue[tuple[int, Outcome]]


class Team:
    """Runs one call on each worker at the same time; the first failure ends all."""

    def __init__(self, workers: Sequence[Worker], begin: Callable[[], None] = lambda: None) -> None:
        """Make no call yet.

        Args:
            workers: The workers.
            begin: Called before each run.
        """
        self._workers = workers
        self._begin = begin
        self._busy = threading.Lock()

    def run(self, calls: Sequence[WorkerCall]) -> list[Any]:
        """Make each call on the worker of its index; return the results.

        Raises:
            FailedPreconditionError: The team is at work already.
            Exception: What the first function that failed raised.
        """
        if not self._busy.acquire(blocking=False):
            raise FailedPreconditionError(
                "the workers of this cluster are running a function already; wait for "
                "that run() to return, or make a second cluster"
            )
        try:
            return self._run(calls)
        finally:
            self._busy.release()

    def _run(self, calls: Sequence[WorkerCall]) -> list[Any]:
        self._begin()
        outcomes: _Outcomes = SimpleQueue()
        over = threading.Event()
        results: dict[int, Any] = {}
        threads = [
            threading.Thread(target=_make, args=(index, *made, outcomes, over), daemon=True)
            for index, made in enumerate(zip(self._workers, calls, strict=True))
        ]
        try:
            for thread in threads:
                thread.start()
            while len(results) < len(calls):
                index, outcome = outcomes.get()
                results[index] = outcome.result_of("worker", index)
        finally:
            # Ctrl-C may have come while threads were being started: they find that it is over.
            over.set()
            self._finish(threads)
        return [results[index] for index in range(len(calls))]

    def _finish(self, threads: Sequence[threading.Thread]) -> None:
        """End the calls that are being made, or are just about to be."""
        deadline = time.monotonic() + _GRACE_SECONDS
        working = [one for one in zip(self._workers, threads, strict=True) if one[1].is_alive()]
        while working and time.monotonic() < deadline:
            for worker, _ in working:
                worker.end_call(max(0.0, deadline - time.monotonic()))
            for _, thread in working:
                thread.join(_GLANCE_SECONDS)
            working = [one for one in working if one[1].is_alive()]


def _make(
    index: int, worker: Worker, call: WorkerCall, outcomes: _Outcomes, over: threading.Event
) -> None:
    if over.is_set():
        return
    try:
        outcome = worker.make(call)
    except Exception as error:
        outcome = Outcome(error=error, traceback=traceback.format_exc())
    outcomes.put((index, outcome))

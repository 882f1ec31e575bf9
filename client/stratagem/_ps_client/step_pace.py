"""How long a program takes for a step by itself, without its waits for servers and other tasks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from statistics import median

from stratagem._core.contexts import get_replica_context, has_strategy
from stratagem._ps_client.closure_identity import is_running
from stratagem_proto.v1.session_pb2 import StepPace as StepPaceMessage

_LAST = 16
# Of fewer steps, the first of which compile and allocate, nothing is told.
_ENOUGH = 5


class StepPace:
    """Measures the steps of a program's first optimizer, each from the end of the one before.

    What the program's thread and those of its replicas wait for is left out, so that who waits for
    a slow task does not seem slow. Steps of scheduled functions do not count, since a worker waits
    for functions between them. Thread-safe.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._optimizer, self._thread = "", 0
        # How many threads wait, since when any does, and for how long any did before.
        self._waiting, self._since, self._waited = 0, 0.0, 0.0
        # When the last step ended, and how long any thread had waited by then.
        self._last = (0.0, 0.0)
        self._own: deque[float] = deque(maxlen=_LAST)

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context in which this thread waits for others."""
        return _Waiting(self)

    def counts(self) -> bool:
        """Return whether waits of this thread are waits of the program."""
        if threading.get_ident() == self._thread:
            return True
        return has_strategy() and get_replica_context() is not None

    def begin_wait(self) -> None:
        """Note that a thread waits."""
        with self._lock:
            if not self._waiting:
                self._since = self._clock()
            self._waiting += 1

    def end_wait(self) -> None:
        """Note that it does not any more."""
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self._waited += self._clock() - self._since

    def step_ended(self, optimizer: str) -> None:
        """Note the end of a step of an optimizer in this thread."""
        thread, now = threading.get_ident(), self._clock()
        with self._lock:
            self._optimizer = self._optimizer or optimizer
            if optimizer != self._optimizer or is_running():
                return
            ended, waited = self._last
            self._last = (now, self._waited)
            # Of threads that take turns, nobody knows whose time it was.
            if thread == self._thread:
                self._own.append(max(now - ended - (self._waited - waited), 0.0))
            self._thread = thread

    def told(self) -> StepPaceMessage | None:
        """Return what servers are told; None while there were too few steps."""
        with self._lock:
            if len(self._own) < _ENOUGH:
                return None
            return StepPaceMessage(steps=len(self._own), own_seconds=median(self._own))


class _Waiting(AbstractContextManager[None]):
    """The context of `StepPace.waiting`; a generator would take longer."""

    __slots__ = ("_counts", "_pace")

    def __init__(self, pace: StepPace) -> None:
        self._pace = pace

    def __enter__(self) -> None:
        self._counts = self._pace.counts()
        if self._counts:
            self._pace.begin_wait()

    def __exit__(self, *_: object) -> None:
        if self._counts:
            self._pace.end_wait()

"""The steps of a client, as servers tell apart what belongs together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Finished(NamedTuple):
    """What is over of a client's steps.

    Attributes:
        step: The last one.
        report: What the client has kept for who saves a checkpoint after it.
    """

    step: int
    report: bytes


class StepCount:
    """Numbers the steps of a client, the same on all servers. Thread-safe.

    A step is what happens while `taking` is entered, from the first thread that enters
    it to the last that leaves. A checkpoint has all of a step or nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._current = 0
        self._apart = 0
        self._own = threading.local()
        self._told = 0
        self._kept = b""
        self._report = b""
        # What is to be reported with steps that another one before is not over of.
        self._reports: deque[Finished] = deque()
        self._ended = threading.Event()

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Makes all that is sent meanwhile one step."""
        if self._own_step:
            yield
            return
        with self._lock:
            self._current += not self._inside
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._end(self._kept)

    def set_apart(self) -> int:
        """Begins a part of the present step that may outlast it; one at a time.

        Returns:
            The step, for `taking_apart`, which must follow.
        """
        with self._lock:
            self._current += not self._inside
            self._apart = self._current
            return self._apart

    @contextmanager
    def taking_apart(self, step: int) -> Iterator[None]:
        """Makes what this thread sends meanwhile a part of a step, and ends the part.

        Args:
            step: Which step, perhaps not the one that other threads take.
        """
        self._own.step = step
        try:
            yield
        finally:
            self._own.step = 0
            with self._lock:
                self._apart = 0
                self._publish()

    def _end(self, report: bytes) -> None:
        self._reports.append(Finished(self._current, report))
        self._publish()

    def _publish(self) -> None:
        while self._reports and self._reports[0].step <= self._over:
            self._report = self._reports.popleft().report
        self._ended.set()

    def keep(self, report: bytes) -> None:
        """Has checkpoints contain this that contain the step that is being taken."""
        with self._lock:
            self._kept = report
            if not self._inside:
                self._end(report)

    @property
    def _own_step(self) -> int:
        step: int = getattr(self._own, "step", 0)
        return step

    @property
    def _over(self) -> int:
        over = self._current - (self._inside > 0)
        return min(over, self._apart - 1) if self._apart else over

    @property
    def current(self) -> int:
        """The step that is being taken; 0 if none is."""
        with self._lock:
            return self._own_step or (self._current if self._inside else 0)

    def tell(self) -> Finished:
        """Says what is over, to a caller that tells a server."""
        with self._lock:
            self._told = self._over
            return Finished(self._told, self._report)

    def untold(self) -> int:
        """The last step that is over, if no server knows that yet; else 0."""
        with self._lock:
            return self._over if self._over > self._told else 0

    def wait_for_end(self, seconds: float) -> bool:
        """Waits until a step ends; whether one did."""
        ended = self._ended.wait(seconds)
        self._ended.clear()
        return ended

    def wake(self) -> None:
        """Ends a wait for the end of a step."""
        self._ended.set()

"""Small writes of scheduled functions, which do not wait until they are applied.

As in a graph of TensorFlow, a write that fails fails the function that it is of, and
not the line of it; what the function reads afterwards has all its writes.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

from stratagem._servers.interruption import uninterrupted
from stratagem._servers.pending import Pending
from stratagem._servers.step_count import StepCount

Line = tuple[str, int, str]
"""A file, the number of a line, and the function that it is in."""


class Write:
    """A write that was sent.

    Attributes:
        lines: What asked for it, innermost first.
        settled: Whether it is known what came of it.
        error: Why it failed, if it has.
    """

    def __init__(self) -> None:
        self.lines = _lines()
        self.settled = False
        self.error: Exception | None = None

    def settle(self, pending: Pending[Any]) -> None:
        """Waits until it is known what came of it."""
        try:
            pending.result()
        except Exception as error:
            self.error = error
        finally:
            self.settled = True


def _lines() -> list[Line]:
    lines = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        lines.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return lines


class WritesBehind:
    """The writes of one function that it has not waited for. Thread-safe."""

    def __init__(self) -> None:
        self._writes: list[Write] = []
        self._backlogs: set[Backlog] = set()
        self.accepting = True

    def add(self, write: Write, backlog: Backlog) -> None:
        """Takes a write in, which is settled with its backlog."""
        self._writes.append(write)
        self._backlogs.add(backlog)

    @property
    def settled(self) -> bool:
        """Whether it is known what came of all of them."""
        return all(write.settled for write in self._writes)

    def settle(self) -> None:
        """Waits until it is known what came of all of them."""
        for backlog in self._backlogs:
            backlog.settle()

    @property
    def failed(self) -> Write | None:
        """The first one that has failed, if any has."""
        return next((write for write in self._writes if write.error), None)


class Backlog:
    """The writes to the servers of one group that nobody has waited for. Thread-safe.

    All of them are one step of the client: a checkpoint has all or none.
    """

    def __init__(self, steps: StepCount) -> None:
        self._steps = steps
        self._waiting: deque[tuple[Write, Pending[Any]]] = deque()
        self._step = ExitStack()
        self._changing = threading.Lock()
        self._settling = threading.Lock()

    def add(self, writes: WritesBehind, send: Callable[[], Pending[Any]]) -> None:
        """Sends a write of a function.

        Raises:
            StratagemError: It could not be sent.
        """
        # A call without its place in the line would be answered with another's answer.
        with uninterrupted(), self._changing:
            if not self._waiting:
                self._step.enter_context(self._steps.taking())
            try:
                write = Write()
                self._waiting.append((write, send()))
            finally:
                if not self._waiting:
                    self._step.close()
        writes.add(write, self)

    def settle(self) -> None:
        """Waits until it is known what came of all of them."""
        if not self._waiting and not self._settling.locked():
            return
        # Writes of other functions must not be given up with this one.
        with uninterrupted(), self._settling:
            with self._changing:
                waiting, self._waiting = self._waiting, deque()
                step, self._step = self._step, ExitStack()
            with step:
                for write, pending in waiting:
                    write.settle(pending)


_present: ContextVar[WritesBehind | None] = ContextVar(
    "stratagem_writes_behind", default=None
)


@contextmanager
def writing_behind(writes: WritesBehind) -> Iterator[None]:
    """Lets this thread run a function that does not wait for its small writes.

    Threads of its replicas belong to it; those that it starts itself do not.
    """
    token = _present.set(writes)
    try:
        yield
    finally:
        _present.reset(token)
        writes.accepting = False


def present_writes() -> WritesBehind | None:
    """What takes the small writes of the function that this thread runs, if any."""
    writes = _present.get()
    return writes if writes is not None and writes.accepting else None

"""Small writes of scheduled functions, which do not wait until they are applied.

As in a graph of TensorFlow, a write that fails fails the function that it is of, and not the line
of it; what the function reads afterwards has all its writes.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import Any, Protocol

from stratagem._core.waiting import uninterrupted
from stratagem._ps_client.checkpoint_steps import CheckpointSteps
from stratagem._ps_client.pending import Pending

# Writes that are sent together, at most: half as many as functions run ahead of, so that a server
# answers some while others are made.
_MOST_KEPT = 8

Line = tuple[str, int, str]
"""A file, the number of a line, and the function that it is in."""


class SentWrite:
    """A write that was sent; `error` says why it failed, if it has."""

    def __init__(self, pending: Pending[Any]) -> None:
        self._pending = pending
        self._stack: list[tuple[CodeType, int]] = []
        self.has_outcome = False
        self.error: Exception | None = None

    def remember(self) -> None:
        """Take note of what asked for it: the caller, and its callers."""
        self._stack = _stack()

    @property
    def lines(self) -> list[Line]:
        """What asked for it, innermost first."""
        return [_line(*place) for place in self._stack]

    def give_up_waiting(self) -> None:
        """Let the write fail where it would be sent again; may be called in any thread."""
        self._pending.give_up_waiting()

    def wait(self) -> None:
        try:
            self._pending.result()
        except Exception as error:
            self.error = error
        finally:
            self.has_outcome = True


def _stack() -> list[tuple[CodeType, int]]:
    """Return the caller's callers as instructions: numbers of lines take a while."""
    places = []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        places.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return places


def _line(code: CodeType, instruction: int) -> Line:
    numbers = (
        number
        for begin, end, number in code.co_lines()
        if number is not None and begin <= instruction < end
    )
    return code.co_filename, next(numbers, code.co_firstlineno), code.co_name


class WriteBatcher(Protocol):
    """Says which small writes wait for those that follow, to be sent with them."""

    def keeps(self, backlog: Backlog) -> bool:
        """Return whether a write waits; if so, `push` of its backlog is called soon."""


_present: ContextVar[WritesBehind | None] = ContextVar("stratagem_writes_behind", default=None)


class WritesBehind:
    """The writes of one function that it has not waited for. Thread-safe.

    To be entered by the thread that runs the function. Threads of its replicas belong to it; those
    that it starts itself do not. It is `accepting` while the function has not ended. Without a
    batcher each write is sent at once.
    """

    def __init__(self, batcher: WriteBatcher | None = None) -> None:
        self.batcher = batcher
        self._writes: list[SentWrite] = []
        self._backlogs: set[Backlog] = set()
        self.accepting = True
        self._given_up = False

    def __enter__(self) -> None:
        self._token = _present.set(self)

    def __exit__(self, *error: object) -> None:
        _present.reset(self._token)
        self.accepting = False

    def add(self, write: SentWrite, backlog: Backlog) -> None:
        """Take a write in, whose outcome is awaited with its backlog."""
        self._writes.append(write)
        self._backlogs.add(backlog)
        if self._given_up:
            write.give_up_waiting()

    def give_up_waiting(self) -> None:
        """Wait for answers, but not for servers that are away; in any thread.

        For a function that was given up: nobody asks for the outcomes of its writes any more, as
        long as none comes later.
        """
        self._given_up = True
        for write in [*self._writes]:
            write.give_up_waiting()

    def keeps(self, backlog: Backlog) -> bool:
        """Return whether one that comes now is to wait for others of its backlog."""
        return self.batcher is not None and self.batcher.keeps(backlog)

    @property
    def has_outcome(self) -> bool:
        return all(write.has_outcome for write in self._writes)

    def wait(self) -> None:
        for backlog in self._backlogs:
            backlog.wait()

    @property
    def failed(self) -> SentWrite | None:
        """The first one that has failed, if any has."""
        return next((write for write in self._writes if write.error), None)


class Backlog:
    """The writes to the servers of one group that nobody has waited for. Thread-safe.

    All of them are one step of the client: a checkpoint has all or none.
    """

    def __init__(self, steps: CheckpointSteps) -> None:
        self._steps = steps
        self._waiting: deque[SentWrite] = deque()
        self._taking = False
        self._kept: list[Pending[Any]] = []
        self._kept_since = 0.0
        self._changing = threading.Lock()
        self._awaiting = threading.Lock()

    def add(self, writes: WritesBehind, send: Callable[[], Pending[Any]]) -> None:
        """Send a write of a function; raise StratagemError if it could not be sent."""
        # A call without its place in the line would be answered with another's answer, and a write
        # that its function does not know of would land after its end.
        with uninterrupted():
            with self._changing:
                write = self._sent(writes, send)
            # The server has begun with it by now.
            write.remember()
            writes.add(write, self)

    def _sent(self, writes: WritesBehind, send: Callable[[], Pending[Any]]) -> SentWrite:
        if not self._waiting:
            self._taking = self._steps.enter()
        try:
            pending = send()
            write = SentWrite(pending)
            self._waiting.append(write)
        finally:
            if not self._waiting:
                self._leave(self._taken())
        self._keep(pending)
        if len(self._kept) >= _MOST_KEPT or not writes.keeps(self):
            self._push()
        return write

    def _taken(self) -> bool:
        """Return whether a step was entered, which the caller is to leave."""
        taking, self._taking = self._taking, False
        return taking

    def _leave(self, taking: bool) -> None:
        if taking:
            self._steps.leave()

    def _keep(self, pending: Pending[Any]) -> None:
        if not self._kept:
            self._kept_since = time.monotonic()
        self._kept.append(pending)

    def keeps_since(self, moment: float) -> bool:
        """Return whether a write has waited to be sent since that moment."""
        return bool(self._kept) and self._kept_since <= moment

    def push(self) -> None:
        with uninterrupted(), self._changing:
            self._push()

    def _push(self) -> None:
        for pending in self._kept:
            pending.push()
        self._kept.clear()

    def wait(self) -> None:
        """Wait until all outcomes are known."""
        if not self._waiting and not self._awaiting.locked():
            return
        # Writes of other functions must not be given up with this one.
        with uninterrupted(), self._awaiting:
            with self._changing:
                self._push()
                waiting, self._waiting = self._waiting, deque()
                taking = self._taken()
            try:
                for write in waiting:
                    write.wait()
            finally:
                self._leave(taking)


def present_writes() -> WritesBehind | None:
    """Return what takes the small writes of this thread's function, if any."""
    writes = _present.get()
    return writes if writes is not None and writes.accepting else None

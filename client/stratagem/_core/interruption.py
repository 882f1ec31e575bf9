"""Where the thread of a function that may be given up is not interrupted.

A thread that waits for a socket takes no exception before it has waited, and one that comes in the
midst of gRPC's code leaves locks taken, and with them a channel, for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TypeVar

from stratagem._core.contexts.presence import Presence

Value = TypeVar("Value")


class Guard:
    """Puts an interruption of this thread off until it may come. Thread-safe.

    Args:
        interrupted: What is then raised.
    """

    def __init__(self, interrupted: type[BaseException]) -> None:
        self._interrupted = interrupted
        self._thread = threading.get_ident()
        self._changing = threading.Lock()
        self._give_up: Callable[[], object] | None = None
        self._due = False

    @property
    def is_mine(self) -> bool:
        """Whether this is its thread, and not one that the function has started."""
        return threading.get_ident() == self._thread

    def strike(self, interrupt: Callable[[], bool]) -> bool:
        """Interrupt the thread, from another one.

        Args:
            interrupt: Does so at once, and returns whether it could. Where that may not be, what
                the thread waits for is given up instead, and it is interrupted after that.

        Returns:
            Whether that was done; if not, it is to be tried again.
        """
        with self._changing:
            give_up = self._give_up
            if give_up is None:
                return interrupt()
            self._due = True
        give_up()
        return True

    @contextmanager
    def held_off(self, give_up: Callable[[], object]) -> Iterator[None]:
        """Let no interruption come while the body runs, nor while one around it does.

        Args:
            give_up: Ends what the body waits for; may be called from any thread. That of a body
                around it counts.
        """
        if self._give_up is not None:
            yield
            return
        try:
            with self._changing:
                self._give_up = give_up
            yield
        finally:
            with self._changing:
                self._give_up = None
                due, self._due = self._due, False
            if due:
                raise self._interrupted


_present: ContextVar[Guard | None] = ContextVar("stratagem_guard", default=None)


def guarded_by(guard: Guard) -> AbstractContextManager[None]:
    """Let this thread run a function that may be interrupted."""
    return Presence(_present, guard)


def is_interruptible() -> bool:
    """Return whether this thread runs a function that may be interrupted."""
    guard = _present.get()
    return guard is not None and guard.is_mine


_FREE: AbstractContextManager[None] = nullcontext()


def uninterrupted(give_up: Callable[[], object] = lambda: None) -> AbstractContextManager[None]:
    """Let no interruption come while the body runs; as `Guard.held_off`."""
    guard = _present.get()
    return _FREE if guard is None or not guard.is_mine else guard.held_off(give_up)


def awaited(wait: Callable[[], Value], give_up: Callable[[], object]) -> Value:
    """Return what is waited for, uninterrupted; as `Guard.held_off`."""
    guard = _present.get()
    if guard is None or not guard.is_mine:
        return wait()
    with guard.held_off(give_up):
        return wait()


def abandonable(messages: Iterator[bytes], give_up: Callable[[], object]) -> Iterator[bytes]:
    """Yield the same messages; an interruption gives up the call, not the thread.

    Args:
        messages: What is waited for.
        give_up: Ends it, from any thread.
    """
    while True:
        with uninterrupted(give_up):
            message = next(messages, None)
        if message is None:
            return
        yield message

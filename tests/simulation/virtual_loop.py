"""An event loop whose time is a number: it jumps to the next timer when nothing is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

Result = TypeVar("Result")


class Stuck(AssertionError):
    """Nothing is ready, and no timer will ever run: somebody waits for ever."""


Beside: TypeAlias = Callable[[Callable[[], None], Callable[[], object]], None]
"""Calls the first function in a while, as a thread would, or the second one instead."""


def _at_once(work: Callable[[], None], give_up: Callable[[], object]) -> None:
    work()


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines without threads, sockets and sleeping; its time begins at 0.

    Attributes:
        beside: Runs what other loops have threads run.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = _Nothing(self)
        self.beside: Beside = _at_once

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass in which nothing happens."""
        self._now += seconds

    def run(self, main: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine to its end, then cancel what it has left running."""
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(main)
        finally:
            self._cancel_all()
            asyncio.set_event_loop(None)
            self.close()

    def run_in_executor(  # type: ignore[override]  # no thread, so no executor of any kind
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function on this thread, when `beside` says so, or cancel what awaits it."""
        future: asyncio.Future[Any] = self.create_future()
        self.beside(partial(_fulfil, future, partial(func, *args)), future.cancel)
        return future

    def _cancel_all(self) -> None:
        left = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        for task in left:
            task.cancel()
        self.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def _process_events(self, events: Sequence[object]) -> None:
        """Do nothing: no events come from outside."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes this loop."""


def _fulfil(future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)


class _Nothing:
    """Stands where other loops ask the system for events; waiting there takes no time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, seconds: float | None) -> Sequence[object]:
        if seconds is None:
            raise Stuck("nobody can go on, and nothing will wake anybody")
        self._loop.advance(seconds)
        return ()

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

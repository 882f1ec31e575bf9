"""An event loop whose time is a number: it jumps to the next timer when nothing is ready."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

Result = TypeVar("Result")


class Stuck(AssertionError):
    """Nothing is ready, and no timer will ever run: somebody waits for ever."""


Beside: TypeAlias = Callable[[Callable[[], None], Callable[[], object]], None]
"""Calls the first function in a while, as a thread would, or the second one instead."""


def _at_once(work: Callable[[], None], give_up: Callable[[], object]) -> None:
    work()


@runtime_checkable
class Thread(Protocol):
    """A thread that does one piece of work after the other."""

    def submitted(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return what does some work, unless it is done before."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines without threads, sockets and sleeping; its time begins at 0.

    Most of what a simulation costs is the loop, so timers here are compared as numbers, and nobody
    asks the system for events. Timers of the same moment run in the order in which they were set.

    Attributes:
        beside: Runs what other loops have threads run.
        holds: Returns whether something is not to run now; whoever says so passes it to `go_on`.
        begins: Called with each task.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self.beside: Beside = _at_once
        self.holds: Callable[[asyncio.Handle], bool] | None = None
        self.begins: Callable[[asyncio.Task[Any]], None] | None = None

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]  # typeshed types the arguments one by one
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a timer that was cancelled is passed over when it is due."""

    def _run_once(self) -> None:
        if not self._ready:
            self._jump()
        self._take_due()
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled() and not (self.holds and self.holds(handle)):
                handle._run()

    def go_on(self, held: Sequence[asyncio.Handle]) -> None:
        """Run what was held before anything else."""
        self._ready.extendleft(reversed(held))

    def create_task(self, *arguments: Any, **others: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = super().create_task(*arguments, **others)
        if self.begins is not None:
            self.begins(task)
        return task

    def _jump(self) -> None:
        """Go to the moment of the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nobody can go on, and nothing will wake anybody")
        self._now = max(self._now, timers[0][0])

    def _take_due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(timers)[2])

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
        work: Callable[[], None] = partial(_fulfil, future, partial(func, *args))
        if isinstance(executor, Thread):
            work = executor.submitted(work)
        self.beside(work, future.cancel)
        return future

    def _cancel_all(self) -> None:
        left = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        for task in left:
            task.cancel()
        self.run_until_complete(asyncio.gather(*left, return_exceptions=True))

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

"""An event loop whose time is a number: it jumps to the next timer when nothing is ready."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial
from itertools import count
from typing import Any, TypeAlias, TypeVar

Result = TypeVar("Result")


class Stuck(AssertionError):
    """Nothing is ready, and no timer will ever run: somebody waits for ever."""


Beside: TypeAlias = Callable[[Callable[[], None], Callable[[], object]], None]
"""Calls the first function in a while, as a thread would, or the second one instead."""


def _at_once(work: Callable[[], None], give_up: Callable[[], object]) -> None:
    work()


class Piece(asyncio.TimerHandle):
    """A piece of code that the loop is to run, at once or later.

    Attributes:
        callback: What to call; it is kept if the piece is cancelled.
        arguments: The arguments of the call.
        context: Where to call it.
    """

    __slots__ = ("arguments", "callback", "context")

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self._when, self._cancelled = when, False
        self.callback, self.arguments = callback, arguments
        self.context = copy_context() if context is None else context

    def cancel(self) -> None:
        self._cancelled = True


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines without threads, sockets and sleeping; its time begins at 0.

    Most of what a simulation costs is the loop: a run takes some 10,000 turns. So timers here are
    compared as numbers, nobody asks the system for events, and what `BaseEventLoop` does for people
    who look for faults of their own in debug mode is left out. Timers of the same moment run in the
    order in which they were set.

    Attributes:
        beside: Runs what other loops have threads run.
        begins: Called with each task.
    """

    _ready: deque[Piece]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, Piece]] = []
        self._numbers = count()
        self._holds: list[Callable[[Piece], bool]] = []
        self.beside: Beside = _at_once
        self.begins: Callable[[asyncio.Task[Any]], None] | None = None

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]  # typeshed types the arguments one by one
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Piece:
        piece = Piece(self._now, callback, args, context)
        self._ready.append(piece)
        return piece

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_later(  # type: ignore[override]  # typeshed types the arguments one by one
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Piece:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]  # typeshed types the arguments one by one
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Piece:
        piece = Piece(when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._numbers), piece))
        return piece

    def _run_once(self) -> None:
        """Run turns until the loop is to stop; so this is called once, and not for each turn."""
        ready = self._ready
        while not self._stopping:
            if not ready:
                self._jump()
            self._take_due()
            for _ in range(len(ready)):
                piece = ready.popleft()
                if not (piece._cancelled or (self._holds and self._is_held(piece))):
                    try:
                        piece.context.run(piece.callback, *piece.arguments)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self._tell(piece, error)

    def _tell(self, piece: Piece, error: BaseException) -> None:
        message = f"{piece.callback!r} fails"
        self.call_exception_handler({"message": message, "exception": error})

    def _is_held(self, piece: Piece) -> bool:
        return any(holds(piece) for holds in self._holds)

    def hold(self, holds: Callable[[Piece], bool]) -> None:
        """Run nothing from now on of which a function says so, which keeps it for `go_on`."""
        self._holds.append(holds)

    def go_on(self, holds: Callable[[Piece], bool], held: Sequence[Piece]) -> None:
        """Run what a function has held, before anything else, and what it would hold."""
        self._holds.remove(holds)
        self._ready.extendleft(reversed(held))

    def create_task(self, *arguments: Any, **others: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(*arguments, loop=self, **others)
        if self.begins is not None:
            self.begins(task)
        return task

    def _jump(self) -> None:
        """Go to the moment of the next timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nobody can go on, and nothing will wake anybody")
        self._now = max(self._now, timers[0][0])

    def _take_due(self) -> None:
        timers, now = self._timers, self._now
        while timers and timers[0][0] <= now:
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
            # They have almost all that a run has made, which need not be garbage for that.
            self._timers.clear()

    def run_in_executor(  # type: ignore[override]  # no thread, so no executor of any kind
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a function on this thread, when `beside` says so, or cancel what awaits it.

        Executors that have threads run it in one of these.
        """
        if executor is not None:
            over: asyncio.Future[Any] = executor.submit(func, *args).thread.over
            return over
        future: asyncio.Future[Any] = self.create_future()
        work: Callable[[], None] = partial(_fulfil, future, partial(func, *args))
        self.beside(work, future.cancel)
        return future

    def _cancel_all(self) -> None:
        # In the order in which they began, whatever number the first task of this run has.
        left = sorted(asyncio.all_tasks(self), key=_begun)
        for task in left:
            task.cancel()
        self.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def _begun(task: asyncio.Task[Any]) -> tuple[int, str]:
    name = task.get_name()
    return len(name), name


def _fulfil(future: asyncio.Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
    else:
        if not future.done():
            future.set_result(result)

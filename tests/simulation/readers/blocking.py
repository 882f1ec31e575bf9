"""Code that waits by blocking, in threads that take turns with the loop of a simulation.

Such a thread is a greenlet: it runs from one place where it waits to the next one. So there is one
order of everything, which the seed decides, though the code under test has threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from tests.simulation.connections import Pauses
from tests.simulation.world import World

Result = TypeVar("Result")


class Ended(BaseException):
    """The process of the code has ended."""


class BlockingProcess:
    """A process whose threads block; it can stand still, and end wherever one of them waits.

    Args:
        world: The run that it is part of.
        name: Its name in the trace and in the network.

    Attributes:
        name: As the argument.
        pauses: When none of its code runs.
        has_ended: Whether it is over.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.pauses = world, name, Pauses(world)
        self.has_ended = False
        self._threads: list[BlockingThread] = []

    def begin(self, work: Callable[[], Any]) -> BlockingThread:
        """Run a function in a thread of its own."""
        thread = BlockingThread(self, work)
        self._threads = [one for one in self._threads if not one.is_over] + [thread]
        thread.begin()
        return thread

    def crash(self) -> None:
        """End all at once."""
        self.has_ended = True
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.end()


class BlockingThread:
    """A thread of a process. What it waits for is on the loop.

    Args:
        process: Its process.
        work: What it does.

    Attributes:
        over: Gets what the work returns or raises; cancelled if the process ends before.
    """

    def __init__(self, process: BlockingProcess, work: Callable[[], Any]) -> None:
        self.process, self._work = process, work
        self._loop = process.world.loop
        self.over: asyncio.Future[Any] = self._loop.create_future()
        # Whoever does not ask for its outcome need not do so.
        self.over.add_done_callback(_retrieve)
        # One that another thread begins, too, gives the loop its turn.
        self._hub: Any = here()._hub if is_blocking() else getcurrent()
        self._strand = greenlet(self.run, self._hub)
        self._strand.thread = self
        self._awaited: asyncio.Future[Any] | None = None
        self.is_over = False

    def begin(self) -> None:
        """Let it run in a moment."""
        self._loop.call_soon(self._go_on, None, context=Context())

    def _go_on(self, _: object) -> None:
        """Let it run until it waits; on the loop."""
        if self.is_over or self.process.has_ended:
            return
        if self.process.pauses.left > 0:
            self._loop.call_later(self.process.pauses.left, self._go_on, None, context=Context())
            return
        self._strand.switch()

    def run(self) -> None:
        """Do the work."""
        try:
            result = self._work()
        except Ended:
            self.over.cancel()
        except BaseException as failure:
            if not self.over.done():
                self.over.set_exception(failure)
        else:
            if not self.over.done():
                self.over.set_result(result)
        self.is_over = True

    def wait_for(self, future: asyncio.Future[Result]) -> Result:
        """Let others run until something is over, and return what came of it; in the thread."""
        if self.process.has_ended:
            future.cancel()
            raise Ended
        if not future.done():
            self._awaited = future
            future.add_done_callback(self._go_on, context=Context())
            self._hub.switch()
            self._awaited = None
            if self.process.has_ended:
                raise Ended
        return future.result()

    def end(self) -> None:
        """End it where it waits; on the loop, once its process has ended."""
        if self._awaited is not None:
            self._awaited.remove_done_callback(self._go_on)
            self._awaited.cancel()
        if self._strand and not self.is_over:
            self._strand.switch()
        self.is_over = True
        self.over.cancel()


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def here() -> BlockingThread:
    """Return the thread that calls this."""
    found: BlockingThread = getcurrent().thread
    return found


def is_blocking() -> bool:
    """Return whether the present code is that of such a thread."""
    return hasattr(getcurrent(), "thread")


def wait(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on the loop, and wait until it is over."""
    thread = here()
    task: asyncio.Task[Result] = thread.process.world.loop.create_task(work)
    return thread.wait_for(task)


def sleep(seconds: float) -> None:
    """Wait for so many seconds, and for the end of a pause of the process."""
    wait(asyncio.sleep(seconds))

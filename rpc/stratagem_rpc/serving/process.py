"""What the servers of a process share: its event loop, and how many files it may open."""

from __future__ import annotations

import asyncio
import resource
import threading
from collections.abc import Callable, Coroutine
from typing import ClassVar, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """One event loop, which all servers of the process share.

    gRPC wakes all loops of a process for each event, so several loops would disturb each other.
    """

    _guard: ClassVar[threading.Lock] = threading.Lock()
    _shared: ClassVar[LoopThread | None] = None
    _users: ClassVar[int] = 0

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="stratagem-server", daemon=True
        )
        self._thread.start()

    @classmethod
    def acquire(cls) -> LoopThread:
        """Return the shared thread; the caller calls `release` when it is done."""
        with cls._guard:
            cls._shared = cls._shared or cls()
            cls._users += 1
            return cls._shared

    def release(self) -> None:
        """Release the thread, which ends with its last user."""
        with LoopThread._guard:
            LoopThread._users -= 1
            if LoopThread._users:
                return
            LoopThread._shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, function: Callable[[], object]) -> None:
        """Schedule a call of a function on the loop."""
        self._loop.call_soon_threadsafe(function)

    def run(self, work: Coroutine[object, object, Result], seconds: float | None = None) -> Result:
        """Run a coroutine on the loop, wait for it in this thread, and return its result.

        Args:
            work: The coroutine.
            seconds: The longest wait; by default there is no limit.

        Raises:
            TimeoutError: It took longer, and was cancelled.
        """
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result(seconds)
        finally:
            running.cancel()


# For checkpoints, logs, sockets between threads, and what libraries open.
_OTHERS = 256

_MOST_FILES = 65_536

# Each takes 16 KiB of memory. Strangers are to get 64 MiB at most, with a thousand calls that they
# begin.
MOST_CONNECTIONS = 2_048


def raise_limit() -> None:
    """Let this process open as many files as the system allows it to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return how many connections to one port leave files for everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft > _MOST_FILES:
        soft = _MOST_FILES
    return min(max(soft - _OTHERS, soft // 2), MOST_CONNECTIONS)

"""Locks of variables, taken in one canonical order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable


class VariableLocks:
    """One lock for each name; an entry exists only while the lock is held."""

    def __init__(self) -> None:
        # The waiters of each held lock, in their order; None if it never had a waiter.
        self._waiting: dict[str, deque[asyncio.Future[None]] | None] = {}
        # By lock: a function of the holder, to be called when another task waits for the lock.
        self._on_contention: dict[str, Callable[[], None]] = {}

    def holding(self, wanted: Callable[[], list[str]]) -> Holding:
        """Return a context that holds several locks at once.

        All callers take locks in the order of their names, so that there are no deadlocks. The set
        of wanted locks may change while the caller waits; the context holds those that are wanted
        when it is entered.

        Args:
            wanted: Returns the names of the wanted locks, sorted and distinct.
        """
        return Holding(self, wanted)

    def are_free(self, names: Iterable[str]) -> bool:
        """Return whether none of these locks is held."""
        return self._waiting.keys().isdisjoint(names)

    def take(self, names: Iterable[str]) -> bool:
        """Take locks if all of them are free, and return whether they were."""
        if not self.are_free(names):
            return False
        self._waiting.update(dict.fromkeys(names))
        return True

    async def acquire(self, name: str) -> None:
        """Wait for a lock."""
        if name not in self._waiting:
            self._waiting[name] = None
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting[name] = self._waiting[name] or deque()
        waiting.append(turn)
        if notify := self._on_contention.get(name):
            notify()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.release(name)
            raise

    def notify_when_contended(self, name: str, notify: Callable[[], None]) -> None:
        """Call a function whenever another task begins to wait for a lock, until its release.

        Args:
            name: The lock, which the caller holds.
            notify: The function; it is called at once if a task waits already.
        """
        self._on_contention[name] = notify
        if self._waiting[name]:
            notify()

    def release(self, name: str) -> None:
        """Release a lock, or hand it to the task that has waited longest."""
        self._on_contention.pop(name, None)
        waiting = self._waiting[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                return turn.set_result(None)
        del self._waiting[name]


class Holding:
    """A context that holds several locks; see `VariableLocks.holding`.

    Args:
        locks: All locks.
        wanted: Returns the names of the locks to hold, sorted.
    """

    def __init__(self, locks: VariableLocks, wanted: Callable[[], list[str]]) -> None:
        self._locks, self._wanted = locks, wanted
        self._held: list[str] = []

    async def acquire(self) -> None:
        """Wait for all locks."""
        wanted = self._wanted()
        if self._locks.take(wanted):
            self._held = [*wanted]
            return
        try:
            while self._held != (wanted := self._wanted()):
                self.release()
                for name in wanted:
                    await self._locks.acquire(name)
                    self._held.append(name)
        except BaseException:
            self.release()
            raise

    __aenter__ = acquire

    async def __aexit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release all locks."""
        while self._held:
            self._locks.release(self._held.pop())

    def notify_when_contended(self, notify: Callable[[], None]) -> None:
        """Call a function whenever another task begins to wait for one of the locks.

        A holder that would keep the locks for long can then release them early.

        Args:
            notify: The function; it is called at once if a task waits already. It may be called
                more than once.
        """
        for name in self._held:
            self._locks.notify_when_contended(name, notify)

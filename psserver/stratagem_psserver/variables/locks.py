"""Locks of variables, taken in one canonical order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable


class VariableLocks:
    """One lock per name, there while somebody holds it."""

    def __init__(self) -> None:
        # Who waits for each, in turn; None while nobody has.
        self._waiting: dict[str, deque[asyncio.Future[None]] | None] = {}
        # What has those give a lock back who need not hold it for longer.
        self._hurries: dict[str, Callable[[], None]] = {}

    def holding(self, wanted: Callable[[], list[str]]) -> Holding:
        """Hold some locks, all at once.

        All callers take them in the order of their names, so none waits for another in a circle.
        Which they are may change while they are waited for: those that are held in the end are
        those wanted then.

        Args:
            wanted: Says which, each once, in that order.
        """
        return Holding(self, wanted)

    def are_free(self, names: Iterable[str]) -> bool:
        """Return whether nobody holds one of them."""
        return self._waiting.keys().isdisjoint(names)

    def take(self, names: Iterable[str]) -> bool:
        """Take locks if all of them are free; say whether they were."""
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
        if hurry := self._hurries.get(name):
            hurry()
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.release(name)
            raise

    def hurry_if_wanted(self, name: str, hurry: Callable[[], None]) -> None:
        """Have a function called when somebody waits for a lock, until it is released.

        Args:
            name: The lock, which the caller holds.
            hurry: The function; called at once if somebody waits already.
        """
        self._hurries[name] = hurry
        if self._waiting[name]:
            hurry()

    def release(self, name: str) -> None:
        """Give a lock to who has waited longest, or back."""
        self._hurries.pop(name, None)
        waiting = self._waiting[name]
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                return turn.set_result(None)
        del self._waiting[name]


class Holding:
    """Holds locks while it is entered; see `VariableLocks.holding`.

    Args:
        locks: All there are.
        wanted: The names of those to hold, sorted, as they are now.
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
        """Give all of them back."""
        while self._held:
            self._locks.release(self._held.pop())

    def hurry_if_wanted(self, hurry: Callable[[], None]) -> None:
        """Have a function called when somebody waits for one of the locks.

        It is for those who could hold them for long, and give them back soon instead.

        Args:
            hurry: The function; called at once if somebody waits already, and perhaps more than
                once.
        """
        for name in self._held:
            self._locks.hurry_if_wanted(name, hurry)

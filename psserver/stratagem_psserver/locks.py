"""Locks of variables, taken in one canonical order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass
class _Entry:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class VariableLocks:
    """One lock per name, there while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def holding(
        self, names: Iterable[str], owner: Callable[[str], str] = str
    ) -> Holding:
        """Holds the locks of the owners of some names, all at once.

        All callers take them in the order of the owners' names, so none waits for
        another in a circle. Owners may change while locks are waited for: those that
        are held in the end are the owners then.
        """
        return Holding(self, list(names), owner)

    async def acquire(self, name: str) -> None:
        """Waits for a lock."""
        entry = self._entries.setdefault(name, _Entry())
        entry.users += 1
        try:
            await entry.lock.acquire()
        except BaseException:
            self._leave(name)
            raise

    def release(self, name: str) -> None:
        """Gives a lock back."""
        self._entries[name].lock.release()
        self._leave(name)

    def _leave(self, name: str) -> None:
        entry = self._entries[name]
        entry.users -= 1
        if not entry.users:
            del self._entries[name]


class Holding:
    """Holds locks while it is entered; see `VariableLocks.holding`."""

    def __init__(
        self, locks: VariableLocks, names: list[str], owner: Callable[[str], str]
    ) -> None:
        self._locks, self._names, self._owner = locks, names, owner
        self._held: list[str] = []

    async def acquire(self) -> None:
        """Waits for all locks."""
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

    def _wanted(self) -> list[str]:
        return sorted(set(map(self._owner, self._names)))

    def release(self) -> None:
        """Gives all of them back."""
        while self._held:
            self._locks.release(self._held.pop())

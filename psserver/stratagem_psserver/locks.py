"""Locks of variables, taken in one canonical order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class _Entry:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class VariableLocks:
    """One lock per name, there while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    @asynccontextmanager
    async def holding(
        self, names: Iterable[str], owner: Callable[[str], str] = str
    ) -> AsyncIterator[None]:
        """Holds the locks of the owners of some names, all at once.

        All callers take them in the order of the owners' names, so none waits for
        another in a circle. Owners may change while locks are waited for: those that
        are held in the end are the owners then.
        """
        names, held = list(names), list[str]()
        try:
            while held != (wanted := sorted({owner(name) for name in names})):
                self._release(held)
                for name in wanted:
                    await self._acquire(name)
                    held.append(name)
            yield
        finally:
            self._release(held)

    def _release(self, held: list[str]) -> None:
        while held:
            name = held.pop()
            self._entries[name].lock.release()
            self._leave(name)

    async def _acquire(self, name: str) -> None:
        entry = self._entries.setdefault(name, _Entry())
        entry.users += 1
        try:
            await entry.lock.acquire()
        except BaseException:
            self._leave(name)
            raise

    def _leave(self, name: str) -> None:
        entry = self._entries[name]
        entry.users -= 1
        if not entry.users:
            del self._entries[name]

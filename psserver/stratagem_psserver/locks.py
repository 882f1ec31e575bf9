"""Locks of variables, taken in one canonical order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
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
    async def holding(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Holds the locks of some names, all at once.

        All callers take them in the order of the names, so none waits for another in
        a circle.
        """
        async with AsyncExitStack() as held:
            for name in sorted(set(names)):
                await held.enter_async_context(self._holding_one(name))
            yield

    @asynccontextmanager
    async def _holding_one(self, name: str) -> AsyncIterator[None]:
        entry = self._entries.setdefault(name, _Entry())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            if not entry.users:
                del self._entries[name]

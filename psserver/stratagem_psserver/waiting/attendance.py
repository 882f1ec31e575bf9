"""Calls that last as long as a session, by whose end its client is seen to be gone."""

from __future__ import annotations

import asyncio
from collections import defaultdict


class Attendance:
    """The calls of clients that attend their sessions; on the event loop."""

    def __init__(self) -> None:
        self._ends: defaultdict[bytes, set[asyncio.Future[None]]] = defaultdict(set)
        self._closed = False

    async def until_end(self, session_id: bytes) -> None:
        """Waits until a session ends, or the server does."""
        if self._closed:
            return
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends[session_id].add(end)
        try:
            await end
        finally:
            self._ends[session_id].discard(end)
            if not self._ends[session_id]:
                del self._ends[session_id]

    def session_ended(self, session_id: bytes) -> None:
        """Ends the calls that attend a session."""
        for end in self._ends.get(session_id, ()):
            if not end.done():
                end.set_result(None)

    def close(self) -> None:
        """Ends all calls, also those to come."""
        self._closed = True
        for session_id in [*self._ends]:
            self.session_ended(session_id)

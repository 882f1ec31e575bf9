"""Values that are copied as they are sent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from stratagem_psserver.variables.locks import Holding


class SentValues(AsyncIterator[bytes]):
    """Frames of values whose locks are held, each made when it is asked for.

    So its bytes are in a processor's cache when they are sent, and nobody has waited
    for those of others: a pull of 10 MB by gRPC takes 3.9 ms, and 5.0 if all frames are
    made first. As soon as somebody waits for a lock, all that is left is made at once
    and the locks are given back: who reads slowly is in nobody's way. Close it.

    Args:
        frames: What to send; copies, once they are made.
        locks: Those of the values.
        compute: Runs what takes as long as to make all frames.
    """

    def __init__(
        self,
        frames: Iterator[bytes],
        locks: Holding,
        compute: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._frames, self._locks, self._compute = frames, locks, compute
        self._made: deque[bytes] = deque()
        self._making: asyncio.Future[None] | None = None
        locks.hurry_if_wanted(self._hurry)

    def _hurry(self) -> None:
        if self._making is None:
            self._making = asyncio.ensure_future(self._make_all())

    async def _make_all(self) -> None:
        try:
            await self._compute(lambda: self._made.extend(self._frames))
        finally:
            self._locks.release()

    async def __anext__(self) -> bytes:
        if self._making is not None:
            await asyncio.shield(self._making)
        frame = self._made.popleft() if self._made else next(self._frames, None)
        if frame is None:
            raise StopAsyncIteration
        return frame

    async def aclose(self) -> None:
        """Returns once the values are left alone."""
        if self._making is not None:
            await asyncio.wait([self._making])

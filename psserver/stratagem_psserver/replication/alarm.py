"""A wait that somebody may cut short."""

from __future__ import annotations

import asyncio


class Alarm:
    """Wakes whoever waits when it is set, or after a while."""

    def __init__(self) -> None:
        self._rings = asyncio.Event()

    def set(self) -> None:
        """End the present wait, or else the next one."""
        self._rings.set()

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, but no longer than for so many seconds."""
        # As `asyncio.wait_for` does with a task of its own each time.
        timer = asyncio.get_running_loop().call_later(seconds, self._rings.set)
        try:
            await self._rings.wait()
        finally:
            timer.cancel()
        self._rings.clear()

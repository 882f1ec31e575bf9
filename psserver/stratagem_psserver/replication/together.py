"""Coroutines that go on only together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Together:
    """Runs coroutines until one of them ends, or all are to."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Future[None]] = []

    async def run(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Run them; cancel the others when one ends.

        Raises:
            Exception: What has ended the first.
        """
        self._tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.end()
            outcomes = await asyncio.gather(*self._tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def end(self) -> None:
        """Cancel all of them; a repetition does nothing."""
        for task in self._tasks:
            task.cancel()

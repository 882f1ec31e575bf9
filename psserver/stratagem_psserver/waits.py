"""Waiting without a thread for something that another request brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TypeVar

from stratagem_proto.errors import StratagemError

Outcome = TypeVar("Outcome")


class Waits:
    """Requests that wait, by what they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._closed: StratagemError | None = None

    async def until(
        self, subject: Hashable, met: Callable[[], Outcome | None], seconds: float
    ) -> Outcome | None:
        """Waits until a condition has an outcome.

        Args:
            subject: What the condition looks at; `changed` must be called with it.
            met: Returns the outcome, or None as long as there is none. What it raises
                ends the wait.
            seconds: Longest wait.

        Returns:
            The outcome, or None if the time was not enough.
        """
        outcome = met()
        if outcome is None and seconds > 0:
            with suppress(asyncio.TimeoutError):
                return await asyncio.wait_for(self._poll(subject, met), seconds)
        return outcome

    async def _poll(
        self, subject: Hashable, met: Callable[[], Outcome | None]
    ) -> Outcome:
        while (outcome := met()) is None:
            if self._closed is not None:
                raise self._closed
            await self._change(subject)
        return outcome

    async def _change(self, subject: Hashable) -> None:
        change = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(subject, set())
        waiting.add(change)
        try:
            await change
        finally:
            waiting.discard(change)
            if not waiting and self._waiting.get(subject) is waiting:
                del self._waiting[subject]

    def changed(self, subject: Hashable) -> None:
        """Lets those who wait for that subject look again."""
        for change in self._waiting.pop(subject, set()):
            if not change.done():
                change.set_result(None)

    def close(self, error: StratagemError) -> None:
        """Ends all waits, present and future, with an error."""
        self._closed = error
        for subject in list(self._waiting):
            self.changed(subject)

"""Waiting without a thread for something that other requests bring about."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from stratagem_proto.errors import StratagemError
from stratagem_proto.serving.figures import SECONDS, Distribution
from stratagem_proto.v1.status_pb2 import WaitStatus
from stratagem_psserver.checkpoint_gate import STEPS

Outcome = TypeVar("Outcome")


class Waits:
    """Requests that wait, by what they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[asyncio.Future[None]]] = {}
        self._present = Counter[str]()
        self._waited = defaultdict[str, Distribution](partial(Distribution, SECONDS))
        self._closed: StratagemError | None = None

    async def until(
        self, subject: Hashable, met: Callable[[], Outcome | None], seconds: float
    ) -> Outcome | None:
        """Wait until a condition has an outcome.

        Args:
            subject: What the condition looks at; `changed` must be called with it.
            met: Returns the outcome, or None as long as there is none. What it raises ends the
                wait.
            seconds: Longest wait.

        Returns:
            The outcome, or None if the time was not enough.
        """
        outcome = met()
        if outcome is None and seconds > 0:
            with suppress(asyncio.TimeoutError), self._counted(_reason(subject)):
                return await asyncio.wait_for(self._poll(subject, met), seconds)
        return outcome

    @contextmanager
    def _counted(self, reason: str) -> Iterator[None]:
        self._present[reason] += 1
        began = time.monotonic()
        try:
            yield
        finally:
            self._present[reason] -= 1
            self._waited[reason].observe(time.monotonic() - began)

    def report(self) -> Iterator[WaitStatus]:
        """Who waits and has waited, by what for."""
        for reason, number in sorted(self._present.items()):
            seconds = self._waited[reason].message()
            yield WaitStatus(reason=reason, waiting=number, seconds=seconds)

    async def _poll(self, subject: Hashable, met: Callable[[], Outcome | None]) -> Outcome:
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
        """Let those who wait for that subject look again."""
        for change in self._waiting.pop(subject, ()):
            if not change.done():
                change.set_result(None)

    def close(self, error: StratagemError) -> None:
        """End all waits, present and future, with an error."""
        self._closed = error
        for subject in list(self._waiting):
            self.changed(subject)


# What subjects are about whose first word does not say it.
_REASONS = {"group": "step", "closure": "turn", STEPS: "checkpoint"}


def _reason(subject: Hashable) -> str:
    """Return what a wait is for, as the contract says it."""
    word = subject[0] if isinstance(subject, tuple) else subject
    # The request after another one of its session waits for the session itself.
    return _REASONS.get(word, word) if isinstance(word, str) else "turn"


class Attendance:
    """The calls of clients that attend their sessions; on the event loop."""

    def __init__(self) -> None:
        self._ends: defaultdict[bytes, set[asyncio.Future[None]]] = defaultdict(set)
        self._closed = False

    async def until_end(self, session_id: bytes) -> None:
        """Wait until a session ends, or the server does."""
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
        """End the calls that attend a session."""
        for end in self._ends.get(session_id, ()):
            if not end.done():
                end.set_result(None)

    def close(self) -> None:
        """End all calls, also those to come."""
        self._closed = True
        for session_id in [*self._ends]:
            self.session_ended(session_id)


_MOST = 10


def listed(names: Sequence[str]) -> str:
    """The names one after the other, or the first of them and how many follow."""
    rest = len(names) - _MOST
    more = f" and {rest} more" if rest > 0 else ""
    return ", ".join(names[:_MOST]) + more

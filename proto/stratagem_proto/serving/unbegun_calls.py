"""Calls by gRPC of which nothing has come but their path.

A call takes memory before its first message says whose it is, and so does that message until it is
whole; gRPC waits for it for ever. So the server waits itself: not for long, and for so many calls
only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from stratagem_proto.errors import DeadlineExceededError, ResourceExhaustedError, StratagemError

# A client whose place was taken repeats its request then.
_RETRY_SECONDS = 0.1


@dataclass(frozen=True)
class Limits:
    """How long calls wait for their first message.

    Attributes:
        most: How many may wait for longer than `grace`.
        seconds: How long a call may wait.
        grace: How long it waits in any case. A message that came with its call is looked at when
            it is its turn, as is the answer to somebody else.
    """

    most: int
    seconds: float
    grace: float = 0.0


class UnbegunCalls:
    """The calls of a server that wait for their first message; used on its event loop.

    Of too many, those that have waited longest give their places to others.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # When each began to wait, in that order.
        self._since: dict[asyncio.Task[Any], float] = {}
        self._ended: dict[asyncio.Task[Any], StratagemError] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    async def first(self, messages: AsyncIterator[bytes]) -> bytes:
        """Return the first message of the present task's call.

        Raises:
            StopAsyncIteration: The call has none.
            ResourceExhaustedError: Others have taken its place.
            DeadlineExceededError: It did not come in time.
        """
        task = self._add()
        try:
            message = await anext(messages)
            if task in self._ended:
                # It came together with the end, which is told here.
                await asyncio.sleep(0)
            return message
        except asyncio.CancelledError:
            if (error := self._ended.get(task)) is None:
                raise
            _uncancel(task)
            raise error from None
        finally:
            self._since.pop(task, None)
            self._ended.pop(task, None)

    def _add(self) -> asyncio.Task[Any]:
        task = asyncio.current_task()
        assert task is not None
        self._since[task] = asyncio.get_running_loop().time()
        if self._timer is None or len(self) == self._limits.most + 1:
            self._await_oldest()
        return task

    @property
    def _end_of_oldest(self) -> float:
        limits = self._limits
        allowed = limits.grace if len(self) > limits.most else limits.seconds
        return next(iter(self._since.values())) + allowed

    def _await_oldest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._end_of_oldest, self._due) if self._since else None

    def _due(self) -> None:
        # Messages that are here already are handed over in this turn of the loop, and taken in the
        # next one.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._end_late)

    def _end_late(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._since and self._end_of_oldest <= now:
            self._end_oldest()
        self._await_oldest()

    def _end_oldest(self) -> None:
        error = self._crowded() if len(self) > self._limits.most else self._late()
        oldest = next(iter(self._since))
        del self._since[oldest]
        self._ended[oldest] = error
        oldest.cancel()

    def _crowded(self) -> ResourceExhaustedError:
        error = ResourceExhaustedError(
            f"more than {self._limits.most} calls of this kind wait for their first message, and "
            "this one has waited longest; send it with the call"
        )
        error.retry_seconds = _RETRY_SECONDS
        return error

    def _late(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"the first message of the call did not come in {self._limits.seconds:g} s; send the "
            "request again"
        )


def _uncancel(task: asyncio.Task[Any]) -> None:
    # Before Python 3.11 a task does not remember that it was cancelled.
    if uncancel := getattr(task, "uncancel", None):
        uncancel()

"""Who decides which replica of a task is the primary: a compare-and-set register of its view."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from google.protobuf.json_format import MessageToJson, Parse, ParseError

from stratagem_proto.errors import DataLossError, InternalError, UnavailableError
from stratagem_proto.v1.replication_pb2 import View


class Arbiter(Protocol):
    """Keeps the view of one task, and replaces it only for who knows the present one.

    This is a compare-and-set register, which all replicas of the task reach or none can change.
    """

    async def read(self) -> View | None:
        """Return the present view; None before there was one.

        Raises:
            UnavailableError: The arbiter cannot be reached.
            DataLossError: What it has is no view.
        """

    async def replace(self, present: View | None, following: View) -> bool:
        """Replace the view that is expected to be the present one; return whether it was.

        Args:
            present: The view that is to be replaced; None if there is none yet.
            following: The next view, with the next epoch.

        Raises:
            UnavailableError: The arbiter cannot be reached. The view may have been replaced.
        """

    async def close(self) -> None:
        """Release what it holds; a repetition does nothing."""


class Deadline:
    """The time at which a call has to have ended, in so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then; a moment if it has come, since 0 stands for no limit in places."""
        return max(self._end - time.monotonic(), 0.001)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end


class Register(Protocol):
    """A compare-and-set register whose methods block, and are called in several threads.

    Each method tries to end by the deadline. It never repeats a request that may have had an
    effect: the repetition would be told that the view is another one, namely that which it has
    written itself.

    Attributes:
        name: What it is called in messages.
    """

    name: str

    def read(self, deadline: Deadline) -> View | None:
        """Return the view, as `Arbiter.read`."""

    def replace(self, present: View | None, following: View, deadline: Deadline) -> bool:
        """Replace the view, as `Arbiter.replace`."""

    def close(self) -> None:
        """Release what it holds."""


def text_of(view: View) -> str:
    return MessageToJson(view, preserving_proto_field_name=True)


def view_of(text: str, where: str) -> View:
    """Return the view that `text_of` wrote; raise DataLossError if it is none."""
    try:
        view = Parse(text, View())
    except ParseError as error:
        raise _damaged(where, str(error)) from error
    if not view.epoch:
        raise _damaged(where, "it has no epoch")
    return view


def _damaged(where: str, reason: str) -> DataLossError:
    reason = " ".join(reason.split())
    return DataLossError(
        f"{where} is no view of replicas, or one of another version: {reason}. Stop all replicas "
        "of the task, remove it, and start that replica first which has served last"
    )


def require_next(present: View | None, following: View) -> None:
    """Raise InternalError unless a view has the epoch after that of the one it replaces."""
    epoch = present.epoch if present is not None else 0
    if following.epoch != epoch + 1:
        raise InternalError(
            f"the view of epoch {epoch} was to be replaced by one of epoch {following.epoch}"
        )


_T = TypeVar("_T")

# Some calls of the system, such as looking up a name, cannot be told when to give up. They occupy
# a thread until they end, and calls after them need another one.
_THREADS = 4

# So much of the time is the register's, so that its own message arrives before ours.
_SHARE = 0.8


class ThreadedArbiter:
    """The arbiter of one task, on top of a register that blocks.

    Args:
        register: Keeps the view.
        seconds: After so many seconds a call has ended, whatever the register does. What a call of
            `replace` that was given up wanted may still happen afterwards.
    """

    def __init__(self, register: Register, seconds: float = 1.0) -> None:
        self._register, self._seconds = register, seconds
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="arbiter")

    async def read(self) -> View | None:
        """As `Arbiter.read`; UnavailableError, too, if the register does not answer in time."""
        return await self._call(self._register.read)

    async def replace(self, present: View | None, following: View) -> bool:
        """As `Arbiter.replace`; raise InternalError if the view does not have the next epoch."""
        require_next(present, following)
        return await self._call(partial(self._register.replace, present, following))

    async def _call(self, work: Callable[[Deadline], _T]) -> _T:
        deadline = Deadline(self._seconds * _SHARE)
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._threads, work, deadline)
        try:
            await asyncio.wait([working], timeout=self._seconds)
        finally:
            working.cancel()
        if working.cancelled():
            raise UnavailableError(
                f"{self._register.name} has not answered within {self._seconds:g} s; see that it "
                "runs and that this host reaches it"
            )
        return working.result()

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._register.close()

"""An arbiter whose register is asked in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from stratagem_proto.errors import UnavailableError
from stratagem_proto.v1.replication_pb2 import View
from stratagem_psserver.replication.arbiters.register import Deadline, Register
from stratagem_psserver.replication.arbiters.views import require_next

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
        """Return the present view; None before there was one.

        Raises:
            UnavailableError: The register cannot be reached in time.
            DataLossError: What it has is no view.
        """
        return await self._call(self._register.read)

    async def replace(self, present: View | None, following: View) -> bool:
        """Replace the view that is expected to be the present one; return whether it was.

        Raises:
            UnavailableError: The register cannot be reached in time. The view may have been
                replaced, or be replaced later.
            DataLossError: What it has is no view.
            InternalError: The view does not have the next epoch.
        """
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
        """Release what it holds; a repetition does nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._register.close()

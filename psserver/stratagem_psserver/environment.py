"""What a server takes from the machine that it runs on: time, randomness, memory and threads."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from stratagem_proto.memory import keep_freed_memory

Result = TypeVar("Result")

# Up to this size a thread switch costs more than the arithmetic.
_INLINE_BYTES = 1 << 20
LARGE_BYTES = _INLINE_BYTES + 1
"""The size of work that is for a thread, however much it goes through."""

# A tensor with little data takes about as long as this many bytes of a large one.
TENSOR_BYTES = 2 << 10
_MOST_THREADS = 4


def tune() -> None:
    """Prepare this process for serving; call it before torch is imported.

    Environment variables that are set already keep their values.
    """
    # After a kernel, its threads would spin and wait for the next one, on cores that the transfer
    # needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Large tensors get huge pages, of which there are few to clear.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    keep_freed_memory()


class Compute:
    """Runs small work on the event loop and large work in threads.

    Attributes:
        inline_bytes: How large small work may be; negative if all work may wait for a disk.
    """

    def __init__(self) -> None:
        self.inline_bytes = _INLINE_BYTES
        self._threads = ThreadPoolExecutor(
            min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="compute"
        )
        self._running: set[Future[Any]] = set()

    async def run(self, work: Callable[[], Result], nbytes: int) -> Result:
        """Return the result of work that goes through that many bytes."""
        if nbytes <= self.inline_bytes:
            return work()
        running = self._threads.submit(copy_context().run, work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(running)

    async def is_done(self, seconds: float) -> bool:
        """Return whether all work in threads ends within so many seconds."""
        if running := list(map(asyncio.wrap_future, self._running)):
            await asyncio.wait(running, timeout=seconds)
        return not self._running

    def close(self, wait: bool = True) -> None:
        """End the threads, after what runs in them if this is to `wait`.

        Nothing can interrupt an operation of torch.
        """
        self._threads.shutdown(wait, cancel_futures=not wait)


Clock: TypeAlias = Callable[[], float]
"""Returns the time in seconds since a moment in the past; it never goes back."""


@dataclass(frozen=True)
class Environment:
    """What a server takes from its machine; a simulation hands in its own.

    Attributes:
        clock: Returns the time, in seconds; the event loop's timers run by the same clock.
        random_bytes: Returns as many random bytes as it is asked for.
        compute: Runs the work that goes through tensors.
    """

    clock: Clock = time.monotonic
    random_bytes: Callable[[int], bytes] = os.urandom
    compute: Compute = field(default_factory=Compute)

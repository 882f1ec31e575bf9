"""How a server process uses the memory and the cores of its machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from stratagem_proto.memory import keep_freed_memory

Result = TypeVar("Result")

# Up to this size a thread switch costs more than the arithmetic.
_INLINE_BYTES = 1 << 20
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
    """Runs small work on the event loop and large work in threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(
            min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="compute"
        )

    async def run(self, work: Callable[[], Result], nbytes: int) -> Result:
        """Return the result of work that goes through that many bytes."""
        if nbytes <= _INLINE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Wait for running work and end the threads."""
        self._threads.shutdown()

"""Where the server's arithmetic runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

# Up to this size a thread switch costs more than the arithmetic.
_INLINE_BYTES = 1 << 20
# A tensor with little data takes about as long as going through so many bytes.
TENSOR_BYTES = 2 << 10
_MOST_THREADS = 4


class Compute:
    """Runs small work on the event loop and large work beside it."""

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

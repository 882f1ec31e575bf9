"""Machines on which servers compute slowly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from stratagem_psserver.environment import Compute

Result = TypeVar("Result")


class DelayedCompute(Compute):
    """Takes some seconds longer for all that it does."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    async def run(self, work: Callable[[], Result], nbytes: int) -> Result:
        await asyncio.sleep(self._seconds)
        return await super().run(work, nbytes)


class GatedCompute(Compute):
    """Goes through tensors only while its gate is open.

    Attributes:
        gate: Set while it is open.
        is_waiting: Set once work has come to the closed gate.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.is_waiting = threading.Event(), threading.Event()
        self.gate.set()

    async def run(self, work: Callable[[], Result], nbytes: int) -> Result:
        if not self.gate.is_set():
            self.is_waiting.set()
            await asyncio.get_running_loop().run_in_executor(None, self.gate.wait)
        return await super().run(work, nbytes)

"""The thread of a simulated server that writes its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tests.simulation.virtual_loop import VirtualLoop


class SimulatedThread:
    """Stands where a `DiskThread` does; its work takes a while, or none at all.

    Args:
        work: What it does.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._is_woken = work, False
        # A chance of its own, so that the chances of other things take the same course.
        self._is_quick = Random("the thread of the disk")

    def wake(self) -> None:
        """Have it work in a while."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if not self._is_woken:
            self._is_woken = True
            loop.beside(self._do, lambda: None)

    def _do(self) -> None:
        if self._is_woken:
            self._is_woken = False
            self._work()

    def notify(self) -> None:
        """Return, as whoever waits does not need to be told."""

    def wait(self, seconds: float) -> bool:
        """Return whether it was so quick that its work is done now."""
        if not self._is_woken or self._is_quick.random() < 0.5:
            return False
        self._do()
        return True

    def end(self) -> None:
        """Work no more."""
        self._is_woken = False

    def join(self) -> None:
        """Return, as nothing goes on."""

"""The thread that lets closures change workers where some have nothing to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

# A closure that has begun by then need not be asked for. Short closures all have.
_PATIENCE_SECONDS = 0.02


class Rebalancing:
    """Calls a function, some time after it was asked to.

    Args:
        rebalance: The function.
        at_end: Called once, after `close`.
    """

    def __init__(
        self, rebalance: Callable[[], None], at_end: Callable[[], None]
    ) -> None:
        self._rebalance = rebalance
        self._at_end = at_end
        self._wishes: SimpleQueue[bool] = SimpleQueue()

    def start(self) -> None:
        """Starts the thread."""
        threading.Thread(
            target=self._run, name="stratagem-rebalancing", daemon=True
        ).start()

    def ask(self) -> None:
        """Wants the function to be called."""
        self._wishes.put(True)

    def close(self) -> None:
        """Lets the thread end. May be called anywhere."""
        self._wishes.put(False)

    def _run(self) -> None:
        while self._wishes.get():
            time.sleep(_PATIENCE_SECONDS)
            self._rebalance()
        self._at_end()

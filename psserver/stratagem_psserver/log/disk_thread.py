"""The thread that writes a log, beside the event loop."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread


class DiskThread:
    """Does one thing whenever it is woken.

    To pass work to a pool of threads, and its end back to the loop, takes longer than a fast disk.
    Here each is one element of a queue.

    Args:
        work: What it does, which raises nothing. It is done again for each `wake` meanwhile.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        # False is the end.
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self._told: SimpleQueue[None] = SimpleQueue()
        self._thread = Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._orders.get():
            self._work()

    def wake(self) -> None:
        """Have it work; from any thread."""
        self._orders.put(True)

    def tell(self) -> None:
        """Have `told` return; in the work."""
        self._told.put(None)

    def told(self, seconds: float) -> bool:
        """Block until the work tells something, and return whether it has in so many seconds."""
        try:
            self._told.get(timeout=max(0.0, seconds))
        except Empty:
            return False
        return True

    def end(self) -> None:
        """Work no more, once the present work is done."""
        self._orders.put(False)

    def join(self) -> None:
        """Block until it has ended."""
        self._thread.join()

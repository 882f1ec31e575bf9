"""Reading in a thread of its own, some items ahead of their use."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from stratagem._core.replica_threads import TorchState

_Item = TypeVar("_Item")

# How long the end of the program waits for reads that are under way, in seconds.
_EXIT_SECONDS = 5.0


@dataclass(frozen=True)
class _Failed:
    """Reading an item has raised."""

    error: BaseException


class _Ended:
    """There are no more items."""


class _ReaderThread(threading.Thread, Generic[_Item]):
    """The thread; it knows nothing of the one who takes the items."""

    def __init__(self, items: Iterator[_Item], depth: int) -> None:
        super().__init__(name="stratagem-input", daemon=True)
        self.taken: SimpleQueue[_Item | _Failed | _Ended] = SimpleQueue()
        self.free = threading.Semaphore(depth)
        self._items = items
        self._stopped = False
        self._torch_state = TorchState.capture()

    def stop(self) -> None:
        """Read nothing more; a read that is under way goes to its end."""
        self._stopped = True
        self.free.release()

    def run(self) -> None:
        with self._torch_state.applied():
            while self._may_read():
                outcome = self._outcome()
                self.taken.put(outcome)
                if isinstance(outcome, _Ended):
                    return

    def _may_read(self) -> bool:
        self.free.acquire()
        return not self._stopped

    def _outcome(self) -> _Item | _Failed | _Ended:
        try:
            return next(self._items)
        except StopIteration:
            return _Ended()
        except BaseException as error:
            # What follows an error is for the items to say, so reading goes on.
            return _Failed(error)


class ReadAhead(Iterator[_Item]):
    """The items of `items`, read by a thread before they are asked for.

    The thread starts with the first item that is asked for, sees the errors of `items` to the one
    who asks, and stops when this object is dropped.

    Args:
        items: What to read.
        depth: How many items may wait.
    """

    def __init__(self, items: Iterator[_Item], depth: int) -> None:
        self._reading = _ReaderThread(items, depth)
        self._ended = False

    def __next__(self) -> _Item:
        if self._ended:
            raise StopIteration
        if not self._reading.ident:
            self._start()
        outcome = self._reading.taken.get()
        self._reading.free.release()
        if isinstance(outcome, _Ended):
            self._ended = True
            raise StopIteration
        if isinstance(outcome, _Failed):
            raise outcome.error
        return outcome

    def _start(self) -> None:
        self._reading.start()
        _running.add(self._reading)
        weakref.finalize(self, self._reading.stop).atexit = False


_running: weakref.WeakSet[_ReaderThread[Any]] = weakref.WeakSet()


def _stop_all() -> None:
    """Stop reading before the interpreter is taken apart under the threads."""
    for reading in list(_running):
        reading.stop()
    for reading in list(_running):
        reading.join(_EXIT_SECONDS)


atexit.register(_stop_all)

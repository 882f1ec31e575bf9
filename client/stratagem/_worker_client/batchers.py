"""Messages to workers that wait a moment for those that follow."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from math import inf
from queue import SimpleQueue

# A longer wait makes messages larger, and keeps a worker that has nothing to run idle for as long.
# Without one, workers whose functions end at once get each function in a message of its own.
_SECONDS = 0.003

_MOST = 32

_LOG = logging.getLogger("stratagem")


class Batcher:
    """Says when one wire is to keep back what it has to send; time is an argument."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self.flush = flush
        self._kept = 0
        self._since = self._flushed = -inf

    def keeps(self, now: float) -> bool:
        """Take note of something to send now, in seconds; return whether it is to wait for more.

        The first one after a pause does not: a lone one would wait for nothing.
        """
        if not self._kept:
            if now - self._flushed > _SECONDS:
                return False
            self._since = now
        self._kept += 1
        return self._kept < _MOST and now - self._since < _SECONDS

    def flushed(self, now: float) -> None:
        """Take note that all is being sent."""
        self._kept, self._flushed = 0, now

    def rest(self) -> None:
        """Take note of a pause: the program waits for what was sent."""
        self.flush()
        self._flushed = -inf


class Batchers:
    """The batchers of all wires of a coordinator. Thread-safe, but for its context.

    What is sent while this is entered, by one thread at a time, may be kept back: until the program
    waits for something, and no longer than a moment.
    """

    def __init__(self) -> None:
        self._entered = False
        # Those of wires that have sent, or kept, something since the program waited.
        self._used: set[Batcher] = set()
        self._timed = False
        # Of this kind because the garbage collector may call `close` anywhere.
        self._wishes: SimpleQueue[bool] = SimpleQueue()

    def start(self) -> None:
        """Start the thread that lets nothing wait too long."""
        threading.Thread(target=self._run, name="stratagem-batchers", daemon=True).start()

    def close(self) -> None:
        """Let the thread end. May be called anywhere, and again."""
        self._wishes.put(False)

    def __enter__(self) -> None:
        self._entered = True

    def __exit__(self, *error: object) -> None:
        self._entered = False

    def keep(self, batcher: Batcher) -> bool:
        """Return whether what a wire has to send now is to wait for more."""
        if not self._entered:
            return False
        # First: a thread that empties the set meanwhile sends what is kept.
        self._used.add(batcher)
        keeps = batcher.keeps(time.monotonic())
        if keeps and not self._timed:
            self._timed = True
            self._wishes.put(True)
        return keeps

    def hurry(self) -> None:
        """Let nothing wait any more, because the program does."""
        try:
            while self._used:
                self._used.pop().rest()
        except KeyError:
            return  # another thread was quicker

    def _run(self) -> None:
        while self._wishes.get():
            time.sleep(_SECONDS)
            self._timed = False
            for batcher in self._used.copy():
                _flush(batcher)


def _flush(batcher: Batcher) -> None:
    try:
        batcher.flush()
    except Exception:
        # The wire has ended its call. Others go on.
        _LOG.exception("nothing can be sent to a worker")

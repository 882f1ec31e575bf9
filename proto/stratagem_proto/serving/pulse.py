"""Whether the event loop of a server still turns."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratagem_proto.serving.loop import LoopThread

_BEAT_SECONDS = 1.0
# Beats, not seconds: a process that was stopped for a while is not wedged. Whatever
# takes long runs beside the loop.
_MISSED_BEATS = 10


class Pulse:
    """Asks the loop for a sign of life each second, in a thread of its own.

    Args:
        loop: The loop.
        changed: Called with whether it turns, each time that this has changed.
    """

    def __init__(self, loop: LoopThread, changed: Callable[[bool], None]) -> None:
        self._loop, self._changed = loop, changed
        self._answered, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks no more; the loop is there until this returns."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        missed = 0
        self._loop.call(self._answered.set)
        while not self._ended.wait(_BEAT_SECONDS):
            if not self._answered.is_set():
                missed += 1
                if missed == _MISSED_BEATS:
                    self._changed(False)
                continue
            if missed >= _MISSED_BEATS:
                self._changed(True)
            missed = 0
            self._answered.clear()
            self._loop.call(self._answered.set)

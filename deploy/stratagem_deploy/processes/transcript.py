"""What a process wrote: its lines, and the end of them for an error to show."""

from __future__ import annotations

import codecs
import os
import threading
from collections import deque
from collections.abc import Callable

from stratagem_proto.lines import LineSplitter, visible

_KEPT_LINES = 30


class Transcript:
    """The lines that one process wrote, of which the last few are kept."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        """Start empty.

        Args:
            show: Called with every line, for instance to print it.
        """
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._splitter = LineSplitter()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()
        self._show = show or (lambda line: None)

    def pipe(self) -> tuple[int, int]:
        """Return new descriptors: one to feed from, one for the process."""
        return os.pipe()

    def feed(self, data: bytes) -> None:
        """Take what the process wrote; nothing means that it has ended."""
        text = self._decoder.decode(data)
        lines = self._splitter.feed(text) if data else self._splitter.end()
        shown = [visible(line) for line in lines]
        with self._lock:
            self._lines.extend(shown)
        for line in shown:
            self._show(line)

    def tail(self) -> str:
        """Return the last lines, for a message."""
        with self._lock:
            return "\n".join(self._lines).strip()

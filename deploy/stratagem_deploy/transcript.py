"""What a process wrote: its lines, and the end of them for an error to show."""

from __future__ import annotations

import codecs
import os
import threading
from collections import deque
from collections.abc import Callable

_KEPT_LINES = 30
# A program that never ends its line must not take memory for ever.
_LONGEST_LINE = 16_384  # characters


def visible(line: str) -> str:
    """What a terminal leaves to see of a line that returns to its own start."""
    return line.rstrip("\r").rpartition("\r")[2]


class LineSplitter:
    """Cuts a stream of bytes, however it arrives, into lines of text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.rest = ""

    def feed(self, data: bytes) -> list[str]:
        """Returns the lines that these bytes complete, without their ends."""
        *lines, self.rest = (self.rest + self._decoder.decode(data)).split("\n")
        if len(self.rest) > _LONGEST_LINE:
            lines, self.rest = [*lines, self.rest], ""
        return lines

    def end(self) -> list[str]:
        """Returns what is left when no more bytes will come."""
        rest, self.rest = self.rest, ""
        return [rest] if rest else []


class Transcript:
    """The lines that one process wrote, of which the last few are kept."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        """Starts empty.

        Args:
            show: Called with every line, for instance to print it.
        """
        self._splitter = LineSplitter()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()
        self._show = show or (lambda line: None)

    def pipe(self) -> tuple[int, int]:
        """Returns new descriptors: one to feed from, one for the process."""
        return os.pipe()

    def feed(self, data: bytes) -> None:
        """Takes what the process wrote; nothing means that it has ended."""
        lines = self._splitter.feed(data) if data else self._splitter.end()
        shown = [visible(line) for line in lines]
        with self._lock:
            self._lines.extend(shown)
        for line in shown:
            self._show(line)

    def tail(self) -> str:
        """Returns the last lines, for a message."""
        with self._lock:
            return "\n".join(self._lines).strip()

"""The lines of text that a program writes bit by bit."""

from __future__ import annotations

# A program that never ends its line must not take memory for ever.
_LONGEST_LINE = 16_384  # characters


def visible(line: str) -> str:
    """Return what a terminal leaves to see of a line that returns to its own start."""
    return line.rstrip("\r").rpartition("\r")[2]


class LineSplitter:
    """Cuts a stream of text, however it arrives, into lines."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """Return the lines that this text completes, without their ends."""
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        return lines

    def end(self) -> list[str]:
        """Return what is left when no more text will come."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []

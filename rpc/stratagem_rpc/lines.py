"""Splitting the output of a program into lines."""

from __future__ import annotations

# A program that never ends its line must not fill the memory.
_LONGEST_LINE = 16_384  # characters


def visible(line: str) -> str:
    """Return the part of a line that a terminal shows, that after its last carriage return."""
    return line.rstrip("\r").rpartition("\r")[2]


class LineSplitter:
    """Splits text that arrives in pieces into lines."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """Return the lines that this text completes, without their ends."""
        *lines, self._rest = (self._rest + text).split("\n")
        if len(self._rest) > _LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], ""
        return lines

    def end(self) -> list[str]:
        """Return the incomplete last line, if any; no more text follows."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []

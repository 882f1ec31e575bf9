"""Patterns of names: `*` stands for any characters of a segment, `**` for any segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_ANY_SEGMENTS = "**"


class NamePattern:
    """A pattern of names whose segments are separated by slashes.

    A match takes time in proportion to the lengths of both, whatever names a client sends.

    Args:
        text: The pattern. `**` is a segment of its own, and stands for any number of them, none
            included.

    Attributes:
        text: As the argument.

    Raises:
        ValueError: `**` is a part of a segment.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._segments = [_segment(segment) for segment in text.split("/")]

    def __repr__(self) -> str:
        return f"NamePattern({self.text!r})"

    def matches(self, name: str) -> bool:
        """Return whether all of a name is as the pattern says."""
        places = self._with_none({0})
        for segment in name.split("/"):
            places = self._with_none(after for at in places for after in self._after(at, segment))
            if not places:
                return False
        return len(self._segments) in places

    def _after(self, place: int, segment: str) -> Iterator[int]:
        """Yield where the pattern may go on behind a segment of the name."""
        if place == len(self._segments):
            return
        pattern = self._segments[place]
        if pattern is None:
            yield place
        elif pattern.matches(segment):
            yield place + 1

    def _with_none(self, places: Iterable[int]) -> set[int]:
        """Return places, and those that are reached where `**` stands for no segment."""
        found = set[int]()
        for place in places:
            found.add(place)
            while place < len(self._segments) and self._segments[place] is None:
                place += 1
                found.add(place)
        return found


class _SegmentPattern:
    """A pattern of one segment, which begins and ends with its first and last piece."""

    def __init__(self, text: str) -> None:
        self._first, *others = text.split("*")
        *self._middle, self._last = others or [""]
        self._is_exact = not others

    def matches(self, segment: str) -> bool:
        if self._is_exact:
            return segment == self._first
        begin, end = len(self._first), len(segment) - len(self._last)
        if begin > end or not (segment.startswith(self._first) and segment.endswith(self._last)):
            return False
        for piece in self._middle:
            found = segment.find(piece, begin, end)
            if found < 0:
                return False
            begin = found + len(piece)
        return True


def _segment(text: str) -> _SegmentPattern | None:
    """Return the pattern of a segment; None for `**`."""
    if text == _ANY_SEGMENTS:
        return None
    if _ANY_SEGMENTS in text:
        raise ValueError(f"{_ANY_SEGMENTS} is only part of {text!r}")
    return _SegmentPattern(text)

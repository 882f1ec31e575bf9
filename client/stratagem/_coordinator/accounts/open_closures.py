"""Which closures of a coordinator have ended, as servers are told."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

# The largest number that servers understand.
_ALL = 2**64 - 1


class Ended(NamedTuple):
    """Closures that have ended.

    Attributes:
        through: All up to this number,
        unended: but for these.
    """

    through: int
    unended: tuple[int, ...]


class OpenClosures:
    """The closures that have not ended.

    Pure. Closures begin in the order of their numbers, some of which may be left out, and end about
    in this order: what is told of them is short.
    """

    def __init__(self) -> None:
        # In the order of their numbers.
        self._unended: dict[int, None] = {}
        self._through = 0

    def begin(self, number: int) -> None:
        """Add a closure, whose number is larger than those before."""
        self._unended[number] = None

    def end(self, number: int) -> None:
        """Take note that a closure has ended, however it did."""
        del self._unended[number]
        self._through = max(self._through, number)

    @property
    def ended(self) -> Ended:
        """What to tell: once told, a closure of it cannot be taken back."""
        through = self._through
        return Ended(through, (*takewhile(lambda one: one < through, self._unended),))


class Inherited:
    """Closures of a coordinator that was lost, with which another one goes on.

    All others of it count as ended.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._unended = set(numbers)

    def end(self, number: int) -> None:
        """Take note that a closure has ended; again does nothing."""
        self._unended.discard(number)

    @property
    def ended(self) -> Ended:
        """What to tell."""
        return Ended(_ALL, (*sorted(self._unended),))

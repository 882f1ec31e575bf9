"""Items that can be looked at before they are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class _Failed:
    """Reading an item has raised; nothing was read behind it yet."""

    error: Exception


class Peekable(Iterator[_Item], Generic[_Item]):
    """The items of `items`, of which some may be read before their turn.

    An error of `items`, and their end, come where they would have come without that.

    Args:
        items: What to read.

    Attributes:
        taken: How many items were taken, those that failed included.
    """

    def __init__(self, items: Iterator[_Item]) -> None:
        self._items = items
        self._waiting: deque[_Item | _Failed] = deque()
        self._has_ended = False
        self.taken = 0

    def __next__(self) -> _Item:
        self._read()
        if not self._waiting:
            raise StopIteration
        self.taken += 1
        item = self._waiting.popleft()
        if isinstance(item, _Failed):
            raise item.error
        return item

    def peek(self, place: int) -> tuple[_Item] | None:
        """Return the item that comes after `place` others; None behind an error or the end."""
        while len(self._waiting) <= place:
            if self._has_ended or (self._waiting and isinstance(self._waiting[-1], _Failed)):
                return None
            self._read(place + 1)
        item = self._waiting[place]
        return None if isinstance(item, _Failed) else (item,)

    def _read(self, wanted: int = 1) -> None:
        """Read one item, unless there are as many as are wanted or the items have ended."""
        if len(self._waiting) >= wanted or self._has_ended:
            return
        try:
            self._waiting.append(next(self._items))
        except StopIteration:
            self._has_ended = True
        except Exception as error:
            self._waiting.append(_Failed(error))

"""What was asked for last, as much of it as may be kept."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key", bytes, "tuple[str, ...]")
Entry = TypeVar("Entry")


class LruCache(Generic[Key, Entry]):
    """Entries by their keys; those that were not asked for the longest go first.

    Args:
        most: Entries there may be.
        most_in_keys: How long their keys may be together.
    """

    def __init__(self, most: int, most_in_keys: float = math.inf) -> None:
        self._most, self._most_in_keys = most, most_in_keys
        # Those that were asked for last are at the end.
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._in_keys = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Entry | None:
        """The entry of a key, which was asked for by this; None if there is none."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, entry: Entry) -> None:
        """Keep an entry in place of its key's, unless there may be no such key."""
        # All others would go before it.
        if len(key) > self._most_in_keys:
            return
        if key not in self._entries:
            self._in_keys += len(key)
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self) > self._most or self._in_keys > self._most_in_keys:
            dropped, _ = self._entries.popitem(last=False)
            self._in_keys -= len(dropped)

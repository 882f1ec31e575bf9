"""A cache that drops the least recently used entries."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key", bytes, "tuple[str, ...]")
Entry = TypeVar("Entry")


class LruCache(Generic[Key, Entry]):
    """A cache of entries by key; the least recently used entries are dropped first.

    Args:
        most: The most entries.
        most_in_keys: The most total length of their keys.
    """

    def __init__(self, most: int, most_in_keys: float = math.inf) -> None:
        self._most, self._most_in_keys = most, most_in_keys
        # The most recently used entries are at the end.
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._in_keys = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def get(self, key: Key) -> Entry | None:
        """Return the entry of a key, which is then the most recently used; None if it has none."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def put(self, key: Key, entry: Entry) -> None:
        """Set the entry of a key; a key that is too long is ignored."""
        # All other entries would be dropped before this one.
        if len(key) > self._most_in_keys:
            return
        if key not in self._entries:
            self._in_keys += len(key)
        self._entries[key] = entry
        self._entries.move_to_end(key)
        while len(self) > self._most or self._in_keys > self._most_in_keys:
            dropped, _ = self._entries.popitem(last=False)
            self._in_keys -= len(dropped)

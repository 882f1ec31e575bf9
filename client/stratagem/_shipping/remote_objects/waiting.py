"""Definitions that have come to a worker before what needs them."""

from __future__ import annotations

import threading
from collections import defaultdict

from stratagem._shipping.parcel import Definition


class WaitingDefinitions:
    """Keeps definitions until values are loaded that were dumped after them.

    Thread-safe: they come while other values are being loaded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: defaultdict[int, list[Definition]] = defaultdict(list)

    def add(self, definition: Definition) -> None:
        """Take in a definition."""
        with self._lock:
            self._waiting[definition.handle].append(definition)

    def due(self, handle: int, revision: int, exists: bool) -> Definition | None:
        """Return the definition that an object is to follow now, if there is one.

        Args:
            handle: Of which object.
            revision: Which revision is wanted. Who was dumped before others may have
                to put up with a later one.
            exists: Whether there is the object in some revision.
        """
        if handle not in self._waiting:
            return None
        with self._lock:
            found = sorted(self._waiting[handle], key=lambda one: one.revision)
        due = [one for one in found if one.revision <= revision]
        if not due and not exists:
            return found[0]
        return due[-1] if due else None

    def drop(self, definition: Definition) -> None:
        """Forget a definition, which was followed, and those before it."""
        handle, revision = definition.handle, definition.revision
        with self._lock:
            later = [one for one in self._waiting[handle] if one.revision > revision]
            self._waiting[handle] = later
            if not later:
                del self._waiting[handle]

    def forget(self, handle: int) -> None:
        """Forget the definitions of an object."""
        with self._lock:
            self._waiting.pop(handle, None)

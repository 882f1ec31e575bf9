"""What is sent to workers, and waits there for what needs it."""

from __future__ import annotations

import pickle
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class StatePart(NamedTuple):
    """A part of an object that may change while the object lives.

    Attributes:
        revision: The first revision of the object that has it like this.
        payload: Its value, pickled.
    """

    revision: int
    payload: bytes


@dataclass(frozen=True)
class Definition:
    """An object that stays on workers, so that payloads need only name it.

    Attributes:
        handle: Its number, the same on all workers.
        revision: Counts its changes, from 1.
        kind: Which of the kinds of objects it is of.
        label: What errors call it.
        essence: What it is made of once, pickled.
        entries: What may change, by a name.
    """

    handle: int
    revision: int
    kind: str
    label: str
    essence: bytes
    entries: Mapping[str, StatePart]

    @classmethod
    def of_result(cls, handle: int, payload: bytes, kind: str) -> Definition:
        """Return the definition of a result of a closure, as it came from a worker."""
        return cls(handle, 1, kind, "a result", payload, {})

    def encode(self) -> bytes:
        """Return what `decode` makes the definition of."""
        entries = {key: tuple(entry) for key, entry in self.entries.items()}
        fields = (self.revision, self.kind, self.label, self.essence, entries)
        return pickle.dumps(fields, protocol=5)

    @classmethod
    def decode(cls, handle: int, payload: bytes, read: Callable[[bytes], Any]) -> Definition:
        """Return a definition that `encode` wrote; `read` reads a pickle of data."""
        revision, kind, label, essence, entries = read(payload)
        parts = {key: StatePart(*entry) for key, entry in entries.items()}
        return cls(handle, revision, kind, label, essence, parts)


@dataclass(frozen=True)
class Parcel:
    """A value that is to be loaded on any worker.

    Attributes:
        payload: What `Loader.load` takes.
        definitions: The objects that the value refers to, by way of others too, as they were when
            it was dumped. A worker has to have each of them in this revision or a later one before
            it loads the value.
        remote_objects: What must be kept on the worker besides, by its handle: results, and
            per-worker values.
        kept: What the definitions are of. Their handles stay valid, as those of `remote_objects`
            do, while there is a parcel.
    """

    payload: bytes
    definitions: tuple[Definition, ...]
    remote_objects: Mapping[int, object]
    kept: tuple[object, ...]

    def missing(self, revisions: Mapping[int, int]) -> list[Definition]:
        """Return what to define first on a worker that was sent `revisions`, by handle."""
        return [one for one in self.definitions if revisions.get(one.handle, 0) < one.revision]


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

        A value that was dumped before others may have to put up with a later revision than its own.
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

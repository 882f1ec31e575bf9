"""What stays on workers: the kinds of objects, their definitions, and parcels that name them."""

from __future__ import annotations

import pickle
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from stratagem._strategies.strategy import Strategy


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
        with self._lock:
            self._waiting.pop(handle, None)


@dataclass(frozen=True)
class WorkerTask:
    """The worker that objects are made on.

    Attributes:
        index: Its index in the job "worker".
        token: The secret of the cluster, which does not travel with objects; None for that of the
            environment.
        address: Where the coordinator reaches it, "host:port"; "" for the address that the cluster
            has for it.
    """

    index: int
    token: str | None = None
    address: str = ""


class Change(NamedTuple):
    """What is new of an object.

    Attributes:
        essence: What the object was made of.
        state: What is new of its state.
        removed: What its state had, and has no more.
    """

    essence: Any
    state: Mapping[str, Any]
    removed: Set[str]


class ObjectKind(ABC):
    """How objects of one kind are taken apart, and made elsewhere.

    The coordinator calls `subject` for each object that it meets, and `essence` once for each
    subject. A worker calls `make` once, or for each function where these do not share the object.
    What `essence` returns is pickled as closures are, so that objects in it that stay on workers
    are only named; `make` gets it with such objects in place.

    Attributes:
        name: Its name in definitions.
        types: Classes whose instances may be of this kind.
        pickles: Whether the essence is pickled; otherwise it is a plain value.
        shared: Whether all functions of a worker have the same object.
    """

    name: ClassVar[str]
    types: ClassVar[tuple[type, ...]]
    pickles: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    @abstractmethod
    def subject(self, value: Any, strategy: Strategy) -> object | None:
        """Return the object to which a handle belongs; None if it travels by value.

        Raises:
            StratagemError: It cannot travel at all.
        """

    @abstractmethod
    def label(self, subject: Any) -> str:
        """Return what errors call it."""

    @abstractmethod
    def essence(self, subject: Any, strategy: Strategy) -> Any:
        """Return what it is made of."""

    @abstractmethod
    def make(self, essence: Any, task: WorkerTask) -> object:
        """Return the object of a worker that corresponds to a subject."""


class SessionKind(ObjectKind):
    """A kind whose objects keep something outside of their process while they live."""

    @abstractmethod
    def refresh(self, made: Any) -> None:
        """Prepare an object for a function that was loaded and may use it."""

    def reached(self, made: Any) -> Mapping[int, bytes]:
        """Return how far servers had come when they answered an object last, by task index."""
        return {}

    @abstractmethod
    def close(self, made: Any) -> None:
        """Give up what an object keeps."""


class ChangingKind(ObjectKind):
    """A kind whose objects change on the coordinator while they live.

    The coordinator calls `state` whenever a subject travels; a worker calls `update` after `make`,
    and whenever the state is another. It is pickled as `essence` is.

    Attributes:
        settings: The parts of the state that are the program's alone: each function on a worker
            begins with them as the program has them, whatever functions before have made of them.
    """

    settings: ClassVar[frozenset[str]] = frozenset()

    def stamp(self, subject: Any) -> object:
        """Return what is another one whenever the state is; None if nothing tells."""
        return None

    @abstractmethod
    def state(self, subject: Any) -> Mapping[str, Any]:
        """Return what of it may change, in parts with names."""

    @abstractmethod
    def update(self, made: Any, change: Change) -> None:
        """Bring what `make` returned up to date, in place."""

    def restore(self, made: Any, settings: Mapping[str, Any]) -> None:
        """Undo what a function has made of settings; those that are missing are not set."""


class RemoteObject(ABC):
    """Stands for what a worker keeps under a handle: a result, or its own part.

    A closure that has one gets what the worker that runs it keeps. The sender of the closure sees
    to it that the worker has it.
    """

    @abstractmethod
    def _shipped_handle(self) -> int:
        """Return the handle, from `ClosurePickler.new_handle`."""

    @abstractmethod
    def _shipped_subject(self) -> object:
        """Return the object while which lives the handle is valid."""


# A program may make classes without end, and drop them with all that they have.
_MOST_KNOWN = 1 << 10


class KindTable(dict[type, "ObjectKind | type[RemoteObject] | None"]):
    """By class, of which kind its instances may be; None for what travels by value.

    A dict, because each object that is pickled is looked up here.
    """

    def __init__(self, *kinds: ObjectKind) -> None:
        super().__init__()
        self.kinds = kinds

    def __missing__(self, cls: type) -> ObjectKind | type[RemoteObject] | None:
        if len(self) >= _MOST_KNOWN:
            self.clear()
        fitting = (kind for kind in self.kinds if issubclass(cls, kind.types))
        found = RemoteObject if issubclass(cls, RemoteObject) else next(fitting, None)
        self[cls] = found
        return found


class ResultKind(ObjectKind):
    """A pickled result that other workers get as it travelled."""

    name = "result"
    types = ()
    shared = False

    def subject(self, value: Any, strategy: Strategy) -> object | None:
        return None

    def label(self, subject: Any) -> str:
        return "a result"

    def essence(self, subject: Any, strategy: Strategy) -> Any:
        return subject

    def make(self, essence: Any, task: WorkerTask) -> object:
        return essence


class PlainResultKind(ResultKind):
    """A result without pickle that other workers get as it travelled, maybe from each other."""

    name = "plain result"
    pickles = False

"""Putting values together on a worker."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stratagem._parameter_server.attached import AttachedStrategy
from stratagem._shipping.input_errors import input_error
from stratagem._shipping.kinds import Change, ChangingKind, Kind, WorkerTask
from stratagem._shipping.parcel import Definition
from stratagem._shipping.pickling import Unpickler
from stratagem._shipping.registered import KINDS
from stratagem._shipping.waiting import WaitingDefinitions
from stratagem_proto.errors import ClosureInputError, NotFoundError

_FIRST: Mapping[int, int] = {}


class Loader:
    """Loads what one coordinator sends to one worker.

    Definitions may come at any time and from any thread. They take effect when a value
    is loaded that was dumped after them, in the order in which values are loaded, which
    is to be done in one thread.

    Args:
        worker_index: Index of the worker in the job "worker" of the cluster.
        token: The secret of the cluster; None for that of the environment. It does not
            travel with strategies.
    """

    def __init__(self, worker_index: int, token: str | None = None) -> None:
        self._task = WorkerTask(worker_index, token)
        self._waiting = WaitingDefinitions()
        self._held: dict[int, _Held] = {}

    def define(self, handle: int, payload: bytes) -> None:
        """Take in the definition of an object, or of how it is from then on.

        Args:
            handle: The object's.
            payload: Of `Definition.encode`.
        """
        self._waiting.add(Definition.decode(handle, payload))

    def keep(self, handle: int, value: object) -> None:
        """Keep what a closure returned, for values that name it."""
        self._held[handle] = _Held(KINDS["result"], None, value)

    def load(self, payload: bytes) -> Any:
        """Return a value.

        Args:
            payload: Of `Parcel`.

        Raises:
            ClosureInputError: It cannot be loaded here.
        """
        with self._naming_failures("the closure"):
            revisions, body = pickle.loads(payload)
            value = _Reading(self, revisions).whole(body)
            for strategy in self._strategies():
                strategy.extended.refresh_new()
            return value

    def find(self, handle: int, wanted: Mapping[int, int] = _FIRST) -> Any:
        """Return what has a handle, brought up to date.

        Args:
            handle: The handle.
            wanted: The revisions of objects that their user knows, by handle; those
                that are not named are the first.

        Raises:
            NotFoundError: Nothing has it.
        """
        revision = wanted.get(handle, 1)
        definition = self._waiting.take(handle, revision, handle in self._held)
        if definition is not None:
            self._apply(definition, _Reading(self, wanted))
        if handle not in self._held:
            raise NotFoundError(
                f"this worker has nothing under handle {handle}; it was released, or "
                "is that of what another worker keeps"
            )
        return self._held[handle].value

    def release(self, handles: Iterable[int]) -> None:
        """Forget what has these handles."""
        for handle in handles:
            self._waiting.forget(handle)
            self._held.pop(handle, None)

    def close(self) -> None:
        """Forget everything, and end the sessions of strategies with servers."""
        strategies = self._strategies()
        self._held.clear()
        for strategy in strategies:
            strategy.close()

    def _strategies(self) -> list[AttachedStrategy]:
        values = [held.value for held in list(self._held.values())]
        return [value for value in values if isinstance(value, AttachedStrategy)]

    def _apply(self, definition: Definition, reading: _Reading) -> None:
        """Make an object what its definition says, or leave the definition waiting."""
        handle = definition.handle
        is_new = handle not in self._held
        try:
            with self._naming_failures(definition.label):
                if is_new:
                    kind = KINDS[definition.kind]
                    essence = reading.value(definition.essence)
                    made = kind.make(essence, self._task)
                    self._held[handle] = _Held(kind, essence, made)
                # It is there already for parts of it that refer to it.
                self._held[handle].update(definition, reading)
        except BaseException:
            self._waiting.add(definition)
            if is_new:
                self._held.pop(handle, None)
            raise

    @contextmanager
    def _naming_failures(self, what: str) -> Iterator[None]:
        try:
            yield
        except ClosureInputError:
            raise  # of something that it uses
        except Exception as error:
            raise input_error(what, self._task, error) from error


class _Held:
    """An object with a handle on a worker.

    Args:
        kind: Its kind.
        essence: What it was made of.
        value: The object.
    """

    def __init__(self, kind: Kind, essence: Any, value: Any) -> None:
        self.value = value
        self._kind = kind
        self._essence = essence
        self._revisions: dict[str, int] = {}

    def update(self, definition: Definition, reading: _Reading) -> None:
        """Make it what a definition says, where that is new."""
        entries = definition.entries
        revisions = {key: entry.revision for key, entry in entries.items()}
        state = {
            key: reading.value(entry.payload)
            for key, entry in entries.items()
            if self._revisions.get(key) != entry.revision
        }
        removed = self._revisions.keys() - revisions.keys()
        if isinstance(self._kind, ChangingKind) and (state or removed):
            self._kind.update(self.value, Change(self._essence, state, removed))
        self._revisions = revisions


class _Reading:
    """The loading of one value, which finds objects as they were when it was dumped."""

    def __init__(self, loader: Loader, revisions: Mapping[int, int]) -> None:
        self._loader = loader
        self._revisions = revisions

    def whole(self, payload: bytes) -> Any:
        """Return the value, with all that it uses up to date."""
        for handle in self._revisions:
            self._find(handle)
        return self.value(payload)

    def value(self, payload: bytes) -> Any:
        """Return a part of it."""
        return Unpickler(payload, self._find).load()

    def _find(self, handle: int) -> Any:
        return self._loader.find(handle, self._revisions)

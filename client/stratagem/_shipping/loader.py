"""Putting values together on a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from stratagem._shipping.import_allowlist import LoadableCode
from stratagem._shipping.kinds import (
    Change,
    ChangingKind,
    Definition,
    ObjectKind,
    ResultKind,
    SessionKind,
    WaitingDefinitions,
    WorkerTask,
)
from stratagem._shipping.outcome_forms import OutcomeForm
from stratagem._shipping.pickling import SessionClasses, words_of
from stratagem._shipping.value_reader import known_to_program, read
from stratagem_proto.errors import ClosureInputError, NotFoundError


class Loader:
    """Loads what one coordinator sends to one worker.

    Definitions may come at any time and from any thread. They take effect when a value is loaded
    that was dumped after them, in the order in which values are loaded, which is to be done in one
    thread.

    Attributes:
        task: The worker.
        kinds: What may stay on it, by name.
        outcomes: How outcomes of its functions travel.
        code: What of functions and classes is loaded.
        waiting: Definitions that nothing has needed yet.
        held: What there is that functions share, by handle.
        results: Those of which each function gets a value of its own, by handle.
        classes: Those that came by value.
    """

    def __init__(
        self,
        task: WorkerTask,
        kinds: Mapping[str, ObjectKind],
        outcomes: OutcomeForm,
        code: LoadableCode,
    ) -> None:
        self.task, self.kinds, self.outcomes, self.code = task, kinds, outcomes, code
        self.waiting = WaitingDefinitions()
        self.held: dict[int, _Held] = {}
        self.results: dict[int, Definition] = {}
        self.classes = SessionClasses()
        self._lacking: dict[int, Exception] = {}

    def define(self, handle: int, payload: bytes) -> None:
        """Take in the definition of an object, or of how it is from then on."""
        self.waiting.add(Definition.decode(handle, payload, self._data))

    def take(self, handle: int, result: bytes) -> None:
        """Take in what a closure returned on some worker."""
        self.waiting.add(Definition.of_result(handle, result, self.outcomes.kind.name))

    def lack(self, handle: int, error: Exception) -> None:
        """Take note that there is nothing to `take`, and why."""
        self._lacking[handle] = error

    def keep(self, handle: int, value: object) -> None:
        """Keep what a closure returned, which all values share that name it."""
        self.held[handle] = _Held(self.kinds[ResultKind.name], None, value)

    def load(self, payload: bytes) -> Any:
        """Return a value; raise `ClosureInputError` if it cannot be loaded here."""
        with self.naming_failures("the closure"):
            revisions, body = self._data(payload)
            value = _ValueLoading(self, revisions).whole(body)
            for held in [*self.held.values()]:
                held.refresh()
            return value

    def reached(self) -> dict[int, bytes]:
        """Return how far servers had come when they answered last, by task index."""
        return {
            task: reached
            for held in [*self.held.values()]
            for task, reached in held.reached().items()
        }

    def _data(self, payload: bytes) -> Any:
        return self.code.read(payload, self.find, self.classes)

    def find(self, handle: int) -> Any:
        """Return what has a handle; raise `NotFoundError` if nothing has it."""
        return _ValueLoading(self, {}).find(handle)

    def release(self, handles: Iterable[int]) -> None:
        for handle in handles:
            self.waiting.forget(handle)
            self.held.pop(handle, None)
            self.results.pop(handle, None)
            self._lacking.pop(handle, None)

    def close(self) -> None:
        """Forget everything, and end the sessions of strategies with servers."""
        held = [*self.held.values()]
        self.held.clear()
        self.results.clear()
        for each in held:
            each.close()

    def missing(self, handle: int) -> Exception:
        return self._lacking.get(handle) or NotFoundError(
            f"this worker has nothing under handle {handle}; it was released, or is "
            "that of what another worker keeps"
        )

    def naming_failures(self, what: str) -> AbstractContextManager[None]:
        """Say of what goes wrong where it does."""
        return _NamingFailures(what, self.task)


class _NamingFailures(AbstractContextManager[None]):
    __slots__ = ("_task", "_what")

    def __init__(self, what: str, task: WorkerTask) -> None:
        self._what, self._task = what, task

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        of_what_it_uses = isinstance(error, ClosureInputError)
        if isinstance(error, Exception) and not of_what_it_uses:
            raise _input_error(self._what, self._task, error) from error


def _input_error(what: str, task: WorkerTask, error: BaseException) -> ClosureInputError:
    """Return a worker's error for what it cannot load, with `error` as original_exception."""
    worker = f"/job:worker/task:{task.index}"
    why = f"{type(error).__name__}: {words_of(error)}{_advice(error)}"
    found = ClosureInputError(f"{worker} cannot load {what}: {why}", task=worker)
    found.original_exception = error
    return found


def _advice(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return (
            f". Install {error.name} on the workers, or let it travel with the "
            "functions by cloudpickle.register_pickle_by_value"
        )
    if isinstance(error, AttributeError):
        return ". Let the workers have the version that the coordinator has"
    return ""


class _Held:
    """An object with a handle on a worker."""

    def __init__(self, kind: ObjectKind, essence: Any, value: Any) -> None:
        self.value = value
        self._kind = kind
        self._essence = essence
        self._session = kind if isinstance(kind, SessionKind) else None
        self._changing = kind if isinstance(kind, ChangingKind) else None
        self._revisions: dict[str, int] = {}
        self._settings: dict[str, Any] = {}

    def refresh(self) -> None:
        if self._session is not None:
            self._session.refresh(self.value)
        if self._changing is not None:
            self._changing.restore(self.value, self._settings)

    def reached(self) -> Mapping[int, bytes]:
        return self._session.reached(self.value) if self._session is not None else {}

    def close(self) -> None:
        if self._session is not None:
            self._session.close(self.value)

    def update(self, definition: Definition, read: Callable[[bytes], Any]) -> None:
        """Make it what a definition says, where that is new."""
        entries = definition.entries
        revisions = {key: entry.revision for key, entry in entries.items()}
        state = {
            key: read(entry.payload)
            for key, entry in entries.items()
            if self._revisions.get(key) != entry.revision
        }
        removed = self._revisions.keys() - revisions.keys()
        if self._changing is not None and (state or removed):
            self._changing.update(self.value, Change(self._essence, state, removed))
            settings = self._changing.settings
            for key in settings & removed:
                del self._settings[key]
            self._settings |= {key: state[key] for key in settings & state.keys()}
        self._revisions = revisions


class _ValueLoading:
    """Loads one value, and finds objects as they were when it was dumped.

    It may be interrupted anywhere: what was not finished is made by the next one. `revisions` has
    those of what the value uses, by handle, where it is not the first.
    """

    def __init__(self, loader: Loader, revisions: Mapping[int, int]) -> None:
        self._loader = loader
        self._revisions = revisions
        self._begun: set[int] = set()

    def whole(self, payload: bytes) -> Any:
        """Return the value, with all that it uses up to date."""
        for handle in self._revisions:
            self.find(handle)
        return self.part(payload)

    def part(self, payload: bytes) -> Any:
        return self._loader.code.read(payload, self.find, self._loader.classes)

    def find(self, handle: int) -> Any:
        """Return what has a handle, brought up to date when it is met first."""
        loader = self._loader
        if handle not in self._begun:
            self._begun.add(handle)
            revision = self._revisions.get(handle, 1)
            definition = loader.waiting.due(handle, revision, handle in loader.held)
            if definition is not None:
                with loader.naming_failures(definition.label):
                    self._apply(definition)
                loader.waiting.drop(definition)
        if (result := loader.results.get(handle)) is not None:
            # A value of its own: who gets it may change it.
            kind = loader.kinds[result.kind]
            with loader.naming_failures(result.label):
                return kind.make(self._essence(result.essence, kind), loader.task)
        if handle not in loader.held:
            raise loader.missing(handle)
        return loader.held[handle].value

    def _essence(self, payload: bytes, kind: ObjectKind) -> Any:
        if kind.pickles:
            return self.part(payload)
        classes = self._loader.classes
        return read(
            payload,
            "another function",
            lambda identity: classes.known(identity) or known_to_program(identity),
        )

    def _apply(self, definition: Definition) -> None:
        held, handle = self._loader.held, definition.handle
        kind = self._loader.kinds[definition.kind]
        if not kind.shared:
            self._loader.results[handle] = definition
            return
        if handle not in held:
            essence = self._essence(definition.essence, kind)
            made = kind.make(essence, self._loader.task)
            held[handle] = _Held(kind, essence, made)
        # It is there already for parts of it that refer to it.
        held[handle].update(definition, self.part)

"""Taking values apart on the coordinator, which tracks what of them stays on workers."""

from __future__ import annotations

import pickle
import sys
import sysconfig
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from weakref import ref

import cloudpickle

from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.loaded_values import carry, written_in
from stratagem._shipping.kinds import (
    ChangingKind,
    Definition,
    KindTable,
    ObjectKind,
    Parcel,
    StatePart,
)
from stratagem._shipping.pickling import Pickler, mark_of, refusal
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import FailedPreconditionError

_STDLIB = sysconfig.get_path("stdlib")


class EditedModules:
    """Has the code of a session's own modules travel once one of their files is edited.

    A worker imports a module once. What `%autoreload` changes here would not reach it, and it would
    go on with the former code. Whoever edits files while a script runs does not mean that script,
    so only interactive sessions are looked at.
    """

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}
        self._edited = False
        self.look()

    def look(self) -> None:
        if not hasattr(sys, "ps1"):
            return
        own = dict(_own_modules())
        for name, module in own.items():
            written = _written(module)
            self._edited |= self._seen.setdefault(name, written) != written
        if self._edited:
            # Those that were not edited may hold functions of others that were.
            for module in own.values():
                cloudpickle.register_pickle_by_value(module)


def _own_modules() -> Iterator[tuple[str, ModuleType]]:
    """The modules that are neither Python's, nor installed, nor ours."""
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not file or name == "__main__":
            continue
        if not _is_installed(file) and not name.startswith("stratagem"):
            yield name, module


def _is_installed(file: str) -> bool:
    return file.startswith(_STDLIB) or bool(
        {"site-packages", "dist-packages"} & {*Path(file).parts}
    )


def _written(module: ModuleType) -> float:
    """When its file was written; 0 if it is no file any more."""
    assert module.__file__
    try:
        return Path(module.__file__).stat().st_mtime
    except OSError:
        return 0.0


class Tracked:
    """An object with a handle, and how it was when it travelled last.

    Attributes:
        handle: Its number.
        definition: How it was when it travelled last; None if it did not.
        needs: What it named then.
    """

    def __init__(
        self, handle: int, kind: ObjectKind, subject: Any, gone: Callable[[], None]
    ) -> None:
        self.handle = handle
        self.definition: Definition | None = None
        self.needs: frozenset[Tracked] = frozenset()
        self._kind = kind
        self._changing = kind if isinstance(kind, ChangingKind) else None
        self._subject = ref(subject, lambda _: gone())
        self._essence = b""
        self._essence_needs: frozenset[Tracked] = frozenset()
        self._parts: dict[str, _TrackedPart] = {}
        self._stamp: object = None

    @property
    def subject(self) -> Any:
        return self._subject()

    def describe(self, strategy: Strategy, writer: _Dump) -> None:
        """Bring `definition` and `needs` up to date."""
        if self.definition is None:
            essence = self._kind.essence(self.subject, strategy)
            self._essence, self._essence_needs = writer.write(essence)
        elif self._changing is None:
            return
        # Of before the state, lest what changes in between goes unnoticed.
        changing = self._changing
        stamp = None if changing is None else changing.stamp(self.subject)
        if stamp is not None and stamp == self._stamp:
            return
        number = 1 if self.definition is None else self.definition.revision + 1
        state = {} if changing is None else changing.state(self.subject)
        parts = {
            key: self._part(self._parts.get(key), value, number, writer)
            for key, value in state.items()
        }
        changed = any(part.entry.revision == number for part in parts.values())
        if number == 1 or changed or parts.keys() != self._parts.keys():
            self.needs = self._essence_needs.union(*(part.needs for part in parts.values()))
            self.definition = Definition(
                self.handle,
                number,
                self._kind.name,
                self._kind.label(self.subject),
                self._essence,
                {key: part.entry for key, part in parts.items()},
            )
        self._parts, self._stamp = parts, stamp

    def _part(
        self, known: _TrackedPart | None, value: object, number: int, writer: _Dump
    ) -> _TrackedPart:
        mark = writer.mark(value)
        if known is not None and mark is not None and mark == known.mark:
            return known
        payload, needs = writer.write(value)
        if known is not None and known.entry.payload == payload:
            return known._replace(mark=mark)
        return _TrackedPart(StatePart(number, payload), needs, mark)


class _TrackedPart(NamedTuple):
    """A part of a state as it travelled last.

    Attributes:
        entry: How it travelled.
        needs: What it names.
        mark: What shows without pickling that it is unchanged; None if nothing does.
    """

    entry: StatePart
    needs: frozenset[Tracked]
    mark: object


class HandleTable:
    """Gives objects their handles, for as long as they live."""

    def __init__(self) -> None:
        self._numbers = count(1)
        # By id: modules may define equality.
        self._tracked: dict[int, Tracked] = {}
        self._gone: deque[int] = deque()

    def new_handle(self) -> int:
        return next(self._numbers)

    def tracked(self, kind: ObjectKind, subject: object) -> Tracked:
        """Return what is known of an object, which gets a handle if it has none."""
        key = id(subject)
        known = self._tracked.get(key)
        if known is None:
            handle = self.new_handle()

            def gone() -> None:
                del self._tracked[key]
                self._gone.append(handle)

            known = self._tracked[key] = Tracked(handle, kind, subject, gone)
        return known

    def gone(self) -> list[int]:
        return [self._gone.popleft() for _ in range(len(self._gone))]


class ClosurePickler:
    """Makes parcels of values, for all workers of one coordinator. Thread-safe.

    What belongs to the strategy stays on the workers once it is there: the strategy, its variables,
    and the modules and parameters and optimizers that were made in its scope. Parcels name it, and
    have the definitions of what they name. All else travels by value, each time.
    """

    def __init__(self, strategy: Strategy, kinds: KindTable) -> None:
        self._strategy, self._kinds = strategy, kinds
        self._table = HandleTable()
        self._edited = EditedModules()
        self._lock = threading.Lock()

    def dump(self, value: object, what: str = "the closure") -> Parcel:
        """Return a value, which errors call `what`, as it is now, so that workers can load it.

        What this process has written to parameters is on the servers afterwards.

        Raises:
            InvalidTypeError: Something in it cannot be pickled; says which, and where.
            FailedPreconditionError: A variable in it does not exist at present.
            UnavailableError: A server cannot be reached, to which a parameter has to be written.
        """
        self._write_parameters()
        with self._lock:
            self._edited.look()
            try:
                return self._parcel(value)
            except FailedPreconditionError:
                # It could be sent at another time.
                raise
            except Exception as error:
                raise refusal(value, what, self._parcel, error) from error

    def _parcel(self, part: object) -> Parcel:
        return _Dump(self).parcel(part)

    def new_handle(self) -> int:
        return self._table.new_handle()

    def gone(self) -> list[int]:
        """Return the handles that no parcel will name again, since the last call.

        Workers may release them.
        """
        return self._table.gone()

    def _write_parameters(self) -> None:
        extended = self._strategy.extended
        assert isinstance(extended, ParameterServerExtended)
        extended._hosting.adopter.adopt()
        written = written_in(extended._store, extended._hosting.parameters)
        if written:
            carry(extended._store, written)
            extended._hosting.seen += 1


class _Dump:
    """Makes one parcel."""

    def __init__(self, closure_pickler: ClosurePickler) -> None:
        self._strategy = closure_pickler._strategy
        self._kinds = closure_pickler._kinds
        self._table = closure_pickler._table
        self._named: set[Tracked] = set()
        self._remote_objects: dict[int, object] = {}
        self._kept: list[object] = []

    @cached_property
    def _pickler(self) -> Pickler:
        return Pickler(self._name)

    def parcel(self, value: object) -> Parcel:
        body, needs = self.write(value)
        found = self._with_all_needs(needs)
        definitions = tuple(one.definition for one in found if one.definition)
        revisions = {one.handle: one.revision for one in definitions if one.revision > 1}
        payload = pickle.dumps((revisions, body), protocol=5)
        # It has a method of this object, so that both would stay until garbage is collected, with
        # the results that closures take.
        vars(self).pop("_pickler", None)
        return Parcel(payload, definitions, self._remote_objects, tuple(self._kept))

    def write(self, value: object) -> tuple[bytes, frozenset[Tracked]]:
        """Pickle a value; returns with it what it names."""
        self._named = set()
        return self._pickler.write(value), frozenset(self._named)

    def mark(self, value: object) -> object:
        """Return what tells a value from others without a pickle; None if nothing."""
        return mark_of(value, self._name)

    def _with_all_needs(self, needs: frozenset[Tracked]) -> list[Tracked]:
        """Describe what is named, and what that names."""
        waiting, found = [*needs], set(needs)
        for tracked in waiting:
            self._kept.append(tracked.subject)
            tracked.describe(self._strategy, self)
            waiting += tracked.needs - found
            found |= tracked.needs
        return waiting

    def _name(self, value: Any) -> int | None:
        """Return the handle of what stays on workers; None for what does not."""
        kind = self._kinds[type(value)]
        if kind is None:
            return None
        # To look whether it is a `Kind` takes longer: that is an abstract class.
        if isinstance(kind, type):
            handle: int = value._shipped_handle()
            self._remote_objects[handle] = value._shipped_subject()
            return handle
        subject = kind.subject(value, self._strategy)
        if subject is None:
            return None
        tracked = self._table.tracked(kind, subject)
        self._named.add(tracked)
        return tracked.handle

"""Taking values apart on the coordinator."""

from __future__ import annotations

import pickle
import threading
from functools import cached_property
from typing import Any

from stratagem._parameter_server.extended import ParameterServerExtended
from stratagem._parameter_server.loaded_values import carry, written_in
from stratagem._shipping.edited_modules import EditedModules
from stratagem._shipping.handles import HandleTable, Tracked
from stratagem._shipping.kinds import KindTable, RemoteObject
from stratagem._shipping.parcel import Parcel
from stratagem._shipping.pickling import Pickler, mark_of
from stratagem._shipping.refusal import refusal
from stratagem._strategies.strategy import Strategy
from stratagem_proto.errors import FailedPreconditionError


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
        """Return a handle for what workers are to keep, such as a result."""
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
            return self._name_remote(value)
        subject = kind.subject(value, self._strategy)
        if subject is None:
            return None
        tracked = self._table.tracked(kind, subject)
        self._named.add(tracked)
        return tracked.handle

    def _name_remote(self, value: RemoteObject) -> int:
        handle = value._shipped_handle()
        self._remote_objects[handle] = value._shipped_subject()
        return handle

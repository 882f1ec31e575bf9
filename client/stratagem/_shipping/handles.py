"""The objects of a coordinator that stay on its workers, and their numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple, Protocol
from weakref import ref

from stratagem._shipping.kinds import ChangingKind, ObjectKind
from stratagem._shipping.parcel import Definition, StatePart
from stratagem._strategies.strategy import Strategy


class Writer(Protocol):
    """Pickles the parts of objects."""

    def write(self, value: object) -> tuple[bytes, frozenset[Tracked]]:
        """Pickle a value; returns with it what it names."""

    def mark(self, value: object) -> object:
        """Return what tells a value from others without a pickle; None if nothing."""


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
        """The object."""
        return self._subject()

    def describe(self, strategy: Strategy, writer: Writer) -> None:
        """Bring `definition` and `needs` up to date."""
        if self.definition is None:
            essence = self._kind.essence(self.subject, strategy)
            self._essence, self._essence_needs = writer.write(essence)
        elif self._changing is None:
            return
        # Of before the state, lest what changes in between goes unnoticed.
        stamp = self._stamp_now()
        if stamp is not None and stamp == self._stamp:
            return
        number = 1 if self.definition is None else self.definition.revision + 1
        parts = self._parts_now(number, writer)
        changed = any(part.entry.revision == number for part in parts.values())
        if number == 1 or changed or parts.keys() != self._parts.keys():
            self._define(number, parts)
        self._parts, self._stamp = parts, stamp

    def _stamp_now(self) -> object:
        return None if self._changing is None else self._changing.stamp(self.subject)

    def _parts_now(self, number: int, writer: Writer) -> dict[str, _TrackedPart]:
        if self._changing is None:
            return {}
        return {
            key: self._part(self._parts.get(key), value, number, writer)
            for key, value in self._changing.state(self.subject).items()
        }

    def _part(
        self, known: _TrackedPart | None, value: object, number: int, writer: Writer
    ) -> _TrackedPart:
        mark = writer.mark(value)
        if known is not None and mark is not None and mark == known.mark:
            return known
        payload, needs = writer.write(value)
        if known is not None and known.entry.payload == payload:
            return known._replace(mark=mark)
        return _TrackedPart(StatePart(number, payload), needs, mark)

    def _define(self, revision: int, parts: Mapping[str, _TrackedPart]) -> None:
        self.needs = self._essence_needs.union(*(part.needs for part in parts.values()))
        self.definition = Definition(
            self.handle,
            revision,
            self._kind.name,
            self._kind.label(self.subject),
            self._essence,
            {key: part.entry for key, part in parts.items()},
        )


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
        """Return a handle that nothing has."""
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
        """Return the handles of objects that have gone since the last call."""
        return [self._gone.popleft() for _ in range(len(self._gone))]

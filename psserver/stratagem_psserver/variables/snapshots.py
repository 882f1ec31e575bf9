"""Snapshots: the values of all variables at one moment, kept while the variables change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple, Protocol
from weakref import ref

import torch

from stratagem_proto.errors import FailedPreconditionError, VariableNotFoundError
from stratagem_proto.key_index import KeyIndex
from stratagem_proto.v1.checkpoint_pb2 import StoredRows
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.arena import Arena, FoundRows, TableSnapshot
from stratagem_psserver.tables.retention import Admission
from stratagem_psserver.tables.table import Table
from stratagem_psserver.variables.store import Variable, VariableStore
from stratagem_storage.checkpoint.entries import COUNTS, KEYS, SEEN, SIGHTS, TOUCHED, companion
from stratagem_storage.checkpoint.parts import Content


class SnapshotValue(Protocol):
    """A tensor as it was at the moment of a snapshot."""

    def runs(self) -> Iterator[torch.Tensor]:
        """Yield it in runs of its rows; on any thread."""

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return some of its rows; on any thread. A tensor without dimensions has one."""


@dataclass(frozen=True)
class WholeValue:
    """The value of a variable, which gets other memory before it changes."""

    value: torch.Tensor

    def runs(self) -> Iterator[torch.Tensor]:
        """As `SnapshotValue.runs`: all at once."""
        return iter((self.value,))

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """As `SnapshotValue.rows`."""
        value = self.value
        return (value if value.dim() else value.reshape(1)).index_select(0, numbers)


@dataclass(frozen=True)
class ArrayValue:
    """An array of a table."""

    table: TableSnapshot
    number: int

    def runs(self) -> Iterator[torch.Tensor]:
        """As `SnapshotValue.runs`."""
        return self.table.runs(self.number)

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """As `SnapshotValue.rows`."""
        return self.table.rows(self.number, numbers)


@dataclass(frozen=True)
class SightsValue:
    """The keys that a table's admission has counted, or how often it has seen each."""

    admission: Admission
    number: int

    @cached_property
    def _value(self) -> torch.Tensor:
        return self.admission.sights()[self.number]

    def runs(self) -> Iterator[torch.Tensor]:
        """As `SnapshotValue.runs`: all at once."""
        return iter((self._value,))

    def rows(self, numbers: torch.Tensor) -> torch.Tensor:
        """As `SnapshotValue.rows`."""
        return self._value.index_select(0, numbers)


_ROWS_AT_ONCE = 1 << 14


class SnapshotArray(NamedTuple):
    """A table's snapshot, and the index of a variable's array in it."""

    rows: TableSnapshot
    number: int


class Origin(NamedTuple):
    """What the rows of a table, or of a slot, in a snapshot are those of.

    While this is the arena, a row that is at its position since then, and that no later write has
    touched, has its bytes of then.

    Attributes:
        arena: The arena; None once nobody has it any more.
        table: The name of the table.
        writes: How many writes the table had had.
    """

    arena: ref[Arena]
    table: str
    writes: int


class Snapshot:
    """The values of all variables at one moment, copied on write.

    It takes no time and no memory until a variable changes.

    Args:
        store: The variables, none of which is being changed.
        copy_of: Only for a snapshot of values, without what optimizers and tables need to go on.
            Returns a copy of a variable's value that nobody changes, so that its memory need not be
            shared; None to share it.

    Attributes:
        origins: What the rows of tables and of their slots are those of, by name.
    """

    def __init__(
        self,
        store: VariableStore,
        copy_of: Callable[[Variable], torch.Tensor | None] | None = None,
    ) -> None:
        self.contents: list[Content] = []
        # What is not read yet, as `contents`.
        self.values: list[SnapshotValue] = []
        self._tables: dict[Table, TableSnapshot] = {}
        # By the names of tables and their slots.
        self._arrays: dict[str, SnapshotArray] = {}
        self.origins: dict[str, Origin] = {}
        # The variables that have not changed, whose memory this snapshot shares.
        self._shared: set[str] = set()
        self._kept_nbytes = 0
        for variable in store.variables():
            if copy_of is not None and variable.spec.slot_of:
                continue
            spec = VariableSpec()
            spec.CopyFrom(variable.spec)
            if variable.arena is not None:
                self._add_table(variable, spec, variable.arena, copy_of is not None)
            elif copy_of is not None and (copy := copy_of(variable)) is not None:
                self._add(Content(spec, variable.version), WholeValue(copy))
            else:
                self.contents.append(Content(spec, variable.version))
                self.values.append(WholeValue(variable.value))
                self._shared.add(spec.name)

    def _add(self, content: Content, value: SnapshotValue) -> None:
        self.contents.append(content)
        self.values.append(value)

    def _add_table(
        self, variable: Variable, spec: VariableSpec, arena: Arena, values_only: bool
    ) -> None:
        table = arena.table
        if table not in self._tables:
            self._tables[table] = table.snapshot(values_only)
        rows = self._tables[table]
        stored = StoredRows(count=rows.count)
        if values_only:
            self._add(Content(spec, variable.version, stored), ArrayValue(rows, 1))
            self._add(Content(companion(spec.name, KEYS, rows.count)), ArrayValue(rows, 0))
            return
        # The arrays of a table begin with its marks.
        number = len(table.marks) + table.arenas.index(arena)
        self._arrays[spec.name] = SnapshotArray(rows, number)
        history = table.history()
        self.origins[spec.name] = Origin(ref(arena), table.name, history.writes)
        if arena is table.value:
            stored.history.CopyFrom(history)
        self._add(Content(spec, variable.version, stored), ArrayValue(rows, number))
        if arena is table.value:
            self._add_companions(spec, rows, len(table.marks))

    def _add_companions(self, spec: VariableSpec, rows: TableSnapshot, marks: int) -> None:
        name, is_dynamic = spec.name, spec.table.HasField("dynamic")
        kept = (KEYS, TOUCHED, COUNTS)[:marks] if is_dynamic else (KEYS,)
        for number, what in enumerate(kept):
            self._add(Content(companion(name, what, rows.count)), ArrayValue(rows, number))
        if not is_dynamic:
            return
        seen = len(rows.admission)
        for number, what in enumerate((SEEN, SIGHTS)):
            self._add(Content(companion(name, what, seen)), SightsValue(rows.admission, number))

    def array(self, variable: Variable) -> SnapshotArray:
        """Return the array of a table or of a slot of one."""
        return self._arrays[variable.name]

    def shares(self, variable: Variable) -> bool:
        """Return whether the snapshot needs the present value of a variable's memory."""
        return variable.name in self._shared

    def note_separated(self, variables: Iterable[Variable]) -> None:
        """Note that variables were moved out of the memory that they shared with this snapshot."""
        for variable in variables:
            # The thread that saves the values may have finished this one just now.
            with suppress(KeyError):
                self._shared.remove(variable.name)
                self._kept_nbytes += variable.value.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are kept only for this snapshot or for several snapshots."""
        return self._kept_nbytes + sum(rows.nbytes for rows in self._tables.values())

    def taken(self, contents: Sequence[Content] | None = None) -> Iterator[torch.Tensor]:
        """Yield the values once, in runs and in their order; on any thread.

        Args:
            contents: As `self.contents`, perhaps with some rows alone, whose numbers come before
                them; all rows of all by default.
        """
        self.values.reverse()
        for content in self.contents if contents is None else contents:
            yield from runs_of(content, self.values.pop())
            self._shared.discard(content.spec.name)

    def close(self) -> None:
        """Release all values that were not read."""
        for table, rows in self._tables.items():
            table.close_snapshot(rows)
        self.values.clear()
        self._tables.clear()
        self._arrays.clear()
        self._shared.clear()
        self._kept_nbytes = 0


def runs_of(content: Content, value: SnapshotValue) -> Iterator[torch.Tensor]:
    """Return what a part has of a value: all rows, a delta, or numbers of rows and then these."""
    if content.delta is not None:
        return iter((content.delta.data,))
    numbers = content.changed
    if numbers is None:
        return value.runs()
    return chain([numbers], map(value.rows, numbers.split(_ROWS_AT_ONCE)))


class Snapshots:
    """All open snapshots."""

    def __init__(self) -> None:
        self._open: list[Snapshot] = []

    @property
    def are_open(self) -> bool:
        """Whether there are any."""
        return bool(self._open)

    def take(
        self,
        store: VariableStore,
        copy_of: Callable[[Variable], torch.Tensor | None] | None = None,
    ) -> Snapshot:
        """Return a snapshot of the present values; the caller closes it by `close`.

        Args:
            store: The variables.
            copy_of: As of `Snapshot`.
        """
        self._open.append(Snapshot(store, copy_of))
        return self._open[-1]

    def close(self, snapshot: Snapshot) -> None:
        """Close a snapshot."""
        snapshot.close()
        self._open.remove(snapshot)

    def shared(self, variables: Iterable[Variable]) -> list[Variable]:
        """Return those of the variables that must get other memory before they change."""
        return [
            variable
            for variable in variables
            if any(snapshot.shares(variable) for snapshot in self._open)
        ]

    def separate(self, variables: Iterable[Variable]) -> None:
        """Move variables into new memory, and leave the old one to snapshots; locks are held."""
        variables = list(variables)
        for variable in variables:
            variable.set_storage(variable.value.clone())
        # Snapshots may be closed in between, by another thread.
        for snapshot in list(self._open):
            snapshot.note_separated(variables)


# Each can grow to the size of all variables together.
MAX_HELD = 4


@dataclass
class HeldTable(Variable):
    """A table, or a slot of one, as it was at the moment of a snapshot.

    Attributes:
        stored: Finds the rows of that moment.
        number: The index of its array in the snapshot of the table.
    """

    stored: SnapshotKeys = field(kw_only=True)
    number: int = field(kw_only=True)

    @property
    def live_arena(self) -> None:
        return None

    def keys(self) -> torch.Tensor:
        return self.stored.rows.keys()

    def rows(self, rows: torch.Tensor) -> torch.Tensor:
        assert self.arena is not None
        values = partial(self.stored.rows.rows, self.number)
        return self.arena.filled(self.stored.find(rows), values)


@dataclass(frozen=True)
class HeldSnapshot:
    """The variables as they were at one moment.

    Attributes:
        cut: Identifies the moment.
        snapshot: Keeps the values of that moment.
        variables: The variables of that moment, by name.
    """

    cut: bytes
    snapshot: Snapshot
    variables: Mapping[str, Variable]

    def get(self, name: str) -> Variable:
        """Return the variable of that name.

        Raises:
            VariableNotFoundError: It did not exist at that moment.
        """
        try:
            return self.variables[name]
        except KeyError:
            raise VariableNotFoundError(
                f"there was no variable {name!r} on this server when the snapshot was "
                "taken; take a new one",
                variable=name,
            ) from None


class HeldSnapshots:
    """The snapshots that sessions hold, at most one each.

    Together they take no more memory than the variables leave of the limit for variables. When they
    grow beyond that, the oldest are closed first.

    Args:
        snapshots: All snapshots of the server.
        memory_limit: The limit for variables.
    """

    def __init__(self, snapshots: Snapshots, memory_limit: VariableMemoryLimit) -> None:
        self._snapshots, self._memory_limit = snapshots, memory_limit
        self._held: dict[bytes, HeldSnapshot] = {}

    def hold(self, session_id: bytes, cut: bytes, store: VariableStore) -> None:
        """Take a snapshot for a session; it replaces the session's earlier one.

        Raises:
            FailedPreconditionError: Too many sessions hold one.
        """
        self.release(session_id)
        if len(self._held) >= MAX_HELD:
            raise FailedPreconditionError(
                f"{MAX_HELD} clients read from snapshots of this server, which is the "
                "most, since each may need the memory of all variables; wait until one "
                "has ended"
            )
        snapshot = self._snapshots.take(store)
        self._held[session_id] = HeldSnapshot(cut, snapshot, _held(store, snapshot))

    @property
    def is_used(self) -> bool:
        """Whether a session holds one."""
        return bool(self._held)

    def fit(self) -> None:
        """Close the oldest snapshots until the others fit into the memory that is left."""
        left = self._memory_limit.left
        while left is not None and sum(one.snapshot.nbytes for one in self._held.values()) > left:
            self.release(next(iter(self._held)))

    def knows(self, session_id: bytes, cut: bytes) -> bool:
        """Return whether the session holds the snapshot of that cut."""
        held = self._held.get(session_id)
        return held is not None and held.cut == cut

    def get(self, session_id: bytes, cut: bytes) -> HeldSnapshot:
        """Return the session's snapshot.

        Raises:
            FailedPreconditionError: It holds none of that cut.
        """
        if not self.knows(session_id, cut):
            raise FailedPreconditionError(
                "this server no longer has the snapshot: the lease ran out meanwhile, "
                "the client has taken another one, or so much has changed since that "
                "--variable-bytes leave no room for it; take a new one"
            )
        return self._held[session_id]

    def owners(self, name: str) -> set[str]:
        """Return the owners of the slots that have a name in some snapshot."""
        named = (held.variables.get(name) for held in self._held.values())
        return {one.spec.slot_of for one in named if one is not None and one.spec.slot_of}

    def release(self, session_id: bytes) -> None:
        """Close a session's snapshot, if it holds one."""
        held = self._held.pop(session_id, None)
        if held is not None:
            self._snapshots.close(held.snapshot)


def _held(store: VariableStore, snapshot: Snapshot) -> dict[str, Variable]:
    """Return the variables as they are now, by name."""
    keys: dict[TableSnapshot, SnapshotKeys] = {}
    held: dict[str, Variable] = {}
    for variable in store.variables():
        if variable.arena is None:
            held[variable.name] = replace(variable)
            continue
        rows, number = snapshot.array(variable)
        own = keys.setdefault(rows, SnapshotKeys(rows))
        table = HeldTable(**vars(variable), stored=own, number=number)
        held[variable.name] = table
    return held


class SnapshotKeys:
    """Finds rows of a table as they were at the moment of a snapshot.

    Args:
        rows: The rows of that moment.

    Attributes:
        rows: As the argument.
    """

    def __init__(self, rows: TableSnapshot) -> None:
        self.rows = rows

    def find(self, keys: torch.Tensor) -> FoundRows:
        """Return where the rows of these keys were stored; keys may repeat."""
        index, held = self._index
        return FoundRows(keys, index.find(keys, held))

    @cached_property
    def _index(self) -> tuple[KeyIndex, torch.Tensor]:
        # The index of the table itself has changed since. This one is made on first use, because
        # most tables of a snapshot are never read.
        keys = self.rows.keys()
        return KeyIndex.from_keys(keys), keys

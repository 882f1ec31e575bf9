"""Snapshots: the values of all variables at one moment, kept while the variables change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch

from stratagem_proto.checkpoint.entries import COUNTS, KEYS, SEEN, SIGHTS, TOUCHED, companion
from stratagem_proto.checkpoint.parts import Content
from stratagem_proto.v1.checkpoint_pb2 import StoredRows
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import Table
from stratagem_psserver.tables.table_snapshot import TableSnapshot
from stratagem_psserver.variables.snapshot_values import (
    ArrayValue,
    SightsValue,
    SnapshotValue,
    WholeValue,
)
from stratagem_psserver.variables.store import Variable, VariableStore

_ROWS_AT_ONCE = 1 << 14


class SnapshotArray(NamedTuple):
    """A table's snapshot, and the index of a variable's array in it."""

    rows: TableSnapshot
    number: int


class Snapshot:
    """The values of all variables at one moment, copied on write.

    It takes no time and no memory until a variable changes.

    Args:
        store: The variables, none of which is being changed.
    """

    def __init__(self, store: VariableStore) -> None:
        self.contents: list[Content] = []
        # What is not read yet, as `contents`.
        self.values: list[SnapshotValue] = []
        self._tables: dict[Table, TableSnapshot] = {}
        # By the names of tables and their slots.
        self._arrays: dict[str, SnapshotArray] = {}
        # The variables that have not changed, whose memory this snapshot shares.
        self._shared: set[str] = set()
        self._kept_nbytes = 0
        for variable in store.variables():
            if variable.arena is not None:
                self._add_table(variable, variable.arena)
            else:
                self._add(_content(variable), WholeValue(variable.value))
                self._shared.add(variable.name)

    def _add(self, content: Content, value: SnapshotValue) -> None:
        self.contents.append(content)
        self.values.append(value)

    def _add_table(self, variable: Variable, arena: Arena) -> None:
        table = arena.table
        if table not in self._tables:
            self._tables[table] = table.snapshot()
        rows = self._tables[table]
        stored = StoredRows(count=rows.count)
        # The arrays of a table begin with its marks.
        number = len(table.marks) + table.arenas.index(arena)
        self._arrays[variable.name] = SnapshotArray(rows, number)
        if arena is table.value:
            stored.history.CopyFrom(table.history())
        self._add(_content(variable, stored), ArrayValue(rows, number))
        if arena is table.value:
            self._add_companions(variable, rows, len(table.marks))

    def _add_companions(self, variable: Variable, rows: TableSnapshot, marks: int) -> None:
        name = variable.name
        is_dynamic = variable.spec.table.HasField("dynamic")
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
            value = self.values.pop()
            yield from value.runs() if content.changed is None else _some(value, content.changed)
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


def _some(value: SnapshotValue, numbers: torch.Tensor) -> Iterator[torch.Tensor]:
    yield numbers
    for some in numbers.split(_ROWS_AT_ONCE):
        yield value.rows(some)


def _content(variable: Variable, rows: StoredRows | None = None) -> Content:
    spec = VariableSpec()
    spec.CopyFrom(variable.spec)
    return Content(spec, variable.version, rows)


class Snapshots:
    """All open snapshots."""

    def __init__(self) -> None:
        self._open: list[Snapshot] = []

    def take(self, store: VariableStore) -> Snapshot:
        """Return a snapshot of the present values; the caller closes it by `close`."""
        self._open.append(Snapshot(store))
        return self._open[-1]

    def close(self, snapshot: Snapshot) -> None:
        """Close a snapshot."""
        snapshot.close()
        self._open.remove(snapshot)

    def shared(self, variables: Iterable[Variable]) -> list[Variable]:
        """Return those of the variables that must get other memory before they change."""
        if not self._open:
            return []
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

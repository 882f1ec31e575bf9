"""The values of all variables at one moment, kept while they go on changing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import torch

from stratagem_proto.checkpoint.parts import Content
from stratagem_proto.checkpoint.tables import KEYS, SEEN, SIGHTS, TOUCHED, companion
from stratagem_proto.v1.checkpoint_pb2 import StoredRows
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.tables.arena import Arena
from stratagem_psserver.tables.table import Table
from stratagem_psserver.tables.table_snapshot import TableSnapshot
from stratagem_psserver.variables.store import Variable, VariableStore


class SnapshotArray(NamedTuple):
    """A rows, and which of its arrays a variable is."""

    rows: TableSnapshot
    number: int


class Snapshot:
    """Copy on write: takes no time and no memory until a variable changes.

    Args:
        store: The variables, none of which is being changed.
    """

    def __init__(self, store: VariableStore) -> None:
        self.contents: list[Content] = []
        self._runs: list[Iterator[torch.Tensor]] = []
        self._tables: dict[Table, TableSnapshot] = {}
        # By the names of tables and their states.
        self._arrays: dict[str, SnapshotArray] = {}
        # Where a variable and this snapshot have the same memory.
        self._shared: set[str] = set()
        self._kept_nbytes = 0
        for variable in store.variables():
            if variable.arena is not None:
                self._add_table(variable, variable.arena)
            else:
                self._add(_content(variable), iter([variable.value]))
                self._shared.add(variable.name)

    def _add(self, content: Content, runs: Iterator[torch.Tensor]) -> None:
        self.contents.append(content)
        self._runs.append(runs)

    def _add_table(self, variable: Variable, arena: Arena) -> None:
        table = arena.table
        if table not in self._tables:
            self._tables[table] = table.snapshot()
        rows = self._tables[table]
        stored = StoredRows(count=rows.count)
        # The arrays of a table begin with the keys and the times.
        number = 2 + table.arenas.index(arena)
        self._arrays[variable.name] = SnapshotArray(rows, number)
        runs = rows.runs(number)
        if arena is table.value:
            stored.history.CopyFrom(table.history())
        self._add(_content(variable, stored), runs)
        if arena is table.value:
            self._add_companions(variable, rows)

    def _add_companions(self, variable: Variable, rows: TableSnapshot) -> None:
        name = variable.name
        self._add(Content(companion(name, KEYS, rows.count)), rows.runs(0))
        if not variable.spec.table.HasField("dynamic"):
            return
        self._add(Content(companion(name, TOUCHED, rows.count)), rows.runs(1))
        seen = len(rows.admission)
        for number, what in enumerate((SEEN, SIGHTS)):
            self._add(Content(companion(name, what, seen)), _sights(rows, number))

    def array(self, variable: Variable) -> SnapshotArray:
        """Return what there is of a table, or of a state of one."""
        return self._arrays[variable.name]

    def shares(self, variable: Variable) -> bool:
        """Return whether a variable's memory has to stay as it is."""
        return variable.name in self._shared

    def note_separated(self, variables: Iterable[Variable]) -> None:
        """Note that variables have got memory of their own."""
        for variable in variables:
            # Who writes the values may have taken it just now, in another thread.
            with suppress(KeyError):
                self._shared.remove(variable.name)
                self._kept_nbytes += variable.value.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes that are there for this snapshot alone, or for it and others."""
        return self._kept_nbytes + sum(rows.nbytes for rows in self._tables.values())

    def values(self) -> Iterator[torch.Tensor]:
        """Yield runs of the values, once, as in `contents`, on any thread."""
        self._runs.reverse()
        for content in self.contents:
            yield from self._runs.pop()
            self._shared.discard(content.spec.name)

    def close(self) -> None:
        """Give up the values that were not taken."""
        for table, rows in self._tables.items():
            table.close_snapshot(rows)
        self._runs.clear()
        self._tables.clear()
        self._arrays.clear()
        self._shared.clear()
        self._kept_nbytes = 0


def _sights(rows: TableSnapshot, number: int) -> Iterator[torch.Tensor]:
    yield rows.admission.sights()[number]


def _content(variable: Variable, rows: StoredRows | None = None) -> Content:
    spec = VariableSpec()
    spec.CopyFrom(variable.spec)
    return Content(spec, variable.version, rows)


class Snapshots:
    """The snapshots whose values are being written."""

    def __init__(self) -> None:
        self._open: list[Snapshot] = []

    def take(self, store: VariableStore) -> Snapshot:
        """Return the values as they are now; `close` it when they are written."""
        self._open.append(Snapshot(store))
        return self._open[-1]

    def close(self, snapshot: Snapshot) -> None:
        """End a snapshot."""
        snapshot.close()
        self._open.remove(snapshot)

    def shared(self, variables: Iterable[Variable]) -> list[Variable]:
        """Those of some variables that must get other memory before they change."""
        if not self._open:
            return []
        return [
            variable
            for variable in variables
            if any(snapshot.shares(variable) for snapshot in self._open)
        ]

    def separate(self, variables: Iterable[Variable]) -> None:
        """Give variables memory of their own; their locks are held."""
        variables = list(variables)
        for variable in variables:
            variable.set_storage(variable.value.clone())
        # Others may be closed meanwhile.
        for snapshot in list(self._open):
            snapshot.note_separated(variables)

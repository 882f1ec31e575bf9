"""Snapshots of all variables, from which clients read while others train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch

from stratagem_proto.errors import FailedPreconditionError, VariableNotFoundError
from stratagem_psserver.limits import VariableMemoryLimit
from stratagem_psserver.tables.arena import FoundRows
from stratagem_psserver.tables.key_index import KeyIndex
from stratagem_psserver.tables.table_snapshot import TableSnapshot
from stratagem_psserver.variables.snapshot import Snapshot, Snapshots
from stratagem_psserver.variables.store import Variable, VariableStore

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
        while self._held and self._take_too_much():
            self.release(next(iter(self._held)))

    def _take_too_much(self) -> bool:
        left = self._memory_limit.left
        held = self._held.values()
        return left is not None and sum(one.snapshot.nbytes for one in held) > left

    def knows(self, session_id: bytes, cut: bytes) -> bool:
        """Return whether the session holds the snapshot of that cut."""
        held = self._held.get(session_id)
        return held is not None and held.cut == cut

    def of(self, session_id: bytes, cut: bytes) -> HeldSnapshot:
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
        return FoundRows(keys, self._index.find(keys))

    @cached_property
    def _index(self) -> KeyIndex:
        # The index of the table itself has changed since. This one is made on first use, because
        # most tables of a snapshot are never read.
        return KeyIndex.of(self.rows.keys())

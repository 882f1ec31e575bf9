"""Snapshots that clients read from while others train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stratagem_proto.errors import (
    FailedPreconditionError,
    UnimplementedError,
    VariableNotFoundError,
)
from stratagem_psserver.snapshot import Snapshot, Snapshots
from stratagem_psserver.store import Variable, VariableStore

# Each may come to take as much memory as all variables together.
MAX_HELD = 4


@dataclass(frozen=True)
class HeldSnapshot:
    """The variables of one moment.

    Attributes:
        cut: The moment.
        snapshot: Keeps the values as they are.
        variables: The variables by name, as they were.
    """

    cut: bytes
    snapshot: Snapshot
    variables: Mapping[str, Variable]

    def get(self, name: str) -> Variable:
        """The variable of that name.

        Raises:
            VariableNotFoundError: It did not exist then.
            UnimplementedError: It is a table.
        """
        variable = self.variables.get(name)
        if variable is None:
            raise VariableNotFoundError(
                f"there was no variable {name!r} on this server when the snapshot was "
                "taken; take a new one",
                variable=name,
            )
        if variable.arena is not None:
            raise UnimplementedError(
                f"snapshots do not hold tables of rows yet, and {name!r} is one; read "
                "its rows before or after",
                variable=name,
            )
        return variable


class HeldSnapshots:
    """One snapshot at most for each session.

    Args:
        snapshots: All snapshots of the server.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._held: dict[bytes, HeldSnapshot] = {}

    def hold(self, session_id: bytes, cut: bytes, store: VariableStore) -> None:
        """Keeps all variables as they are now, in place of what the session has.

        Raises:
            FailedPreconditionError: Too many sessions have one.
        """
        self.release(session_id)
        if len(self._held) >= MAX_HELD:
            raise FailedPreconditionError(
                f"{MAX_HELD} clients read from snapshots of this server, which is the "
                "most, since each may need the memory of all variables; wait until one "
                "has ended"
            )
        snapshot = self._snapshots.take(store)
        variables = {one.name: replace(one) for one in store.variables()}
        self._held[session_id] = HeldSnapshot(cut, snapshot, variables)

    def knows(self, session_id: bytes, cut: bytes) -> bool:
        """Whether the session has the snapshot of that moment."""
        held = self._held.get(session_id)
        return held is not None and held.cut == cut

    def of(self, session_id: bytes, cut: bytes) -> HeldSnapshot:
        """The session's snapshot.

        Raises:
            FailedPreconditionError: It has none of that moment.
        """
        if not self.knows(session_id, cut):
            raise FailedPreconditionError(
                "this server no longer has the snapshot: the lease ran out meanwhile, "
                "or the client has taken another one; take a new one"
            )
        return self._held[session_id]

    def release(self, session_id: bytes) -> None:
        """Lets go of a session's snapshot, if it has one."""
        held = self._held.pop(session_id, None)
        if held is not None:
            self._snapshots.close(held.snapshot)

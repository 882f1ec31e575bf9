"""The values of all variables at one moment, kept while they go on changing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from stratagem_proto.checkpoint.parts import Content
from stratagem_proto.errors import UnimplementedError
from stratagem_proto.v1.variable_pb2 import VariableSpec
from stratagem_psserver.store import Variable, VariableStore


class Snapshot:
    """Copy on write: takes no time and no memory until a variable changes.

    Args:
        store: The variables, none of which is being changed.
    """

    def __init__(self, store: VariableStore) -> None:
        variables = list(store.variables())
        self.contents = [_content(variable) for variable in variables]
        self._values = [variable.value for variable in variables]
        # Where a variable and this snapshot have the same memory.
        self._shared = {variable.name for variable in variables}

    def shares(self, variable: Variable) -> bool:
        """Whether a variable's memory has to stay as it is."""
        return variable.name in self._shared

    def part_from(self, names: Iterable[str]) -> None:
        """Takes note that variables have got memory of their own."""
        self._shared.difference_update(names)

    def values(self) -> Iterator[torch.Tensor]:
        """Yields the values, once, in the order of `contents`, on any thread."""
        self._values.reverse()
        for content in self.contents:
            yield self._values.pop()
            self._shared.discard(content.spec.name)

    def close(self) -> None:
        """Gives up the values that were not taken."""
        self._values.clear()
        self._shared.clear()


def _require_no_table(store: VariableStore) -> None:
    for variable in store.variables():
        if variable.arena is not None:
            raise UnimplementedError(
                f"checkpoints do not hold tables of rows yet, and {variable.name!r} is "
                "one; read the rows that you need by its module, and save them",
                variable=variable.name,
            )


def _content(variable: Variable) -> Content:
    spec = VariableSpec()
    spec.CopyFrom(variable.spec)
    return Content(spec, variable.version)


class Snapshots:
    """The snapshots whose values are being written."""

    def __init__(self) -> None:
        self._open: list[Snapshot] = []

    def take(self, store: VariableStore) -> Snapshot:
        """The values as they are now; `close` it when they are written.

        Raises:
            UnimplementedError: A variable is a table.
        """
        _require_no_table(store)
        self._open.append(Snapshot(store))
        return self._open[-1]

    def close(self, snapshot: Snapshot) -> None:
        """Ends a snapshot."""
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

    def part(self, variables: Iterable[Variable]) -> None:
        """Gives variables memory of their own; their locks are held."""
        for variable in variables:
            variable.value = variable.value.clone()
        names = [variable.name for variable in variables]
        for snapshot in self._open:
            snapshot.part_from(names)
